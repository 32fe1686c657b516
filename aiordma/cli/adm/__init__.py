"""``aiordma adm``: read and change running processes."""
