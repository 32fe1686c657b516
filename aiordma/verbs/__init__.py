"""The control path through pyverbs: devices, protection domains, memory regions, CQs, QPs."""
