// What CUDA's own header of this name defines for a C++ compiler; pip has it only in a package of its own.
#pragma once
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __host__
#define __device__
#define __CUDA_DEPRECATED
#define CUDARTAPI
