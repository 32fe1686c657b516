"""Everything that the library does, mixed for as long as one likes, with a verdict: ``python -m tests.soak``.

For each event loop there are a server process and a client process that live as long as the soak, beside
others that are killed. A watcher looks at memory, descriptors and progress. ``make soak`` runs it.
"""
