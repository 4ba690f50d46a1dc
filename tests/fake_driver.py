"""A CUDA driver library with two GPUs, compiled on the spot: for what asks the driver itself."""

import shutil
import subprocess

import pytest

DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *v) { *v = 13010; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device ? "B" : "A", size);
    return 0;
}
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 6000000000ul; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 + device : attribute == 76 ? 6 : -1;
    return 0;
}
"""


def driver(folder, status):
    """A driver library with two GPUs, whose cuInit returns `status` (see cuda.h)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "cuda.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", f"-DSTATUS={status}", "-o", library, source]
    subprocess.run(command, check=True)
    return str(library)
