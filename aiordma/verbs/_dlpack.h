/* The structures of DLPack 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html): arrays without copies. */
#pragma once
#include <stdint.h>

enum { AIO_DL_CPU = 1, AIO_DL_INT = 0, AIO_DL_UINT = 1, AIO_DL_FLOAT = 2, AIO_DL_BOOL = 6, AIO_DL_READ_ONLY = 1 };

struct aio_dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides; /* in items; strides NULL: contiguous */
	uint64_t byte_offset;
};

struct aio_dl_managed {
	struct aio_dl_tensor tensor;
	void *context;
	void (*deleter)(struct aio_dl_managed *self);
};

struct aio_dl_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct aio_dl_versioned *self);
	uint64_t flags;
	struct aio_dl_tensor tensor;
};
