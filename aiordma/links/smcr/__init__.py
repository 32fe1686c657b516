"""Link groups with peers that are other implementations of SMC-R, the Linux kernel's."""
