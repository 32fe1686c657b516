"""``aiordma debug-bundle``: one file with everything that helps to find out what is wrong."""
