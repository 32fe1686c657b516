"""``aiordma stat``: the connections of all processes of this user."""
