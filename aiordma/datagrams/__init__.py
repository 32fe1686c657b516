"""Datagrams: connected ones (reliable, on a ring or TCP), and endpoints on UD queue pairs or UDP."""
