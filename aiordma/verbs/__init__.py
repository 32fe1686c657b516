"""The control path of a verbs device, by way of pyverbs: devices, queue pairs, completion queues, memory."""
