"""The admin endpoint of a process: what `aiordma stat` and `aiordma adm` see and change, over a Unix
socket."""
