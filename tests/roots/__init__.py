"""Other systems to try aiordma on: roots of Debian releases, another processor, Pythons built from source."""
