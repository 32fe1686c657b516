"""The parts of pubsub.py.

wire.py     what travels: one datagram is one message, so there is nothing to frame and nothing to reassemble
broker.py   topics, subscribers, and what happens to those that are slow
"""
