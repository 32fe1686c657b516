"""The parts of pubsub.py.

wire.py     the messages: one datagram is one message, so no framing or reassembly is needed
broker.py   topics, subscribers, and the treatment of slow subscribers
"""
