# C types of plain.py.
cpdef int check_plain(data) except -1
