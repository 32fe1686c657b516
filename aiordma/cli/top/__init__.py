"""``aiordma top``: rates of all processes of this user, again and again."""
