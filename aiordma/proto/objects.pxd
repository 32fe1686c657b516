# C types of objects.py.
cimport cython

@cython.locals(size=cython.longlong, at=cython.longlong, count=cython.longlong, waiting=cython.longlong,
               announced=cython.longlong, kind=int, width=int)
cpdef long long count_objects(const unsigned char[::1] data, long long most) except -1
@cython.locals(size=cython.longlong, at=cython.longlong, count=cython.longlong, left=cython.longlong,
               level=cython.longlong, announced=cython.longlong, kind=int, role=int, text=bint, is_map=bint,
               above=list)
cpdef long long count_keys(const unsigned char[::1] data, long long most, int also) except -1
@cython.locals(width=int)
cdef long long _length(const unsigned char[::1] data, long long at, int kind, long long size) noexcept
@cython.locals(value=cython.longlong, place=int)
cdef long long _number(const unsigned char[::1] data, long long at, int width, long long size) noexcept
