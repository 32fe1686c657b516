"""``aiordma demo``: what aiordma is, shown on this machine in a minute."""
