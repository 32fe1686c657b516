# Compiled, without C types.
