"""The Cython data path on the verbs ABI: posting, polling, dispatch and send-queue fairness, without pyverbs.

``aiordma/_cq.pyx``, the completion-queue poller, belongs to this package.
"""
