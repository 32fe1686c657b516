"""Tests of aiordma.memory."""
