"""Source for programs that ask their own C library (glibc) where memory came from."""

MAPPED = """
import ctypes, torch

class Told(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Told
held = []

def mapped(megabytes):
    '''Whether so much is asked of the system, and not found in what was freed.'''
    before = library.mallinfo2().hblks
    held.append(torch.empty(megabytes * 2**20, dtype=torch.uint8))
    return library.mallinfo2().hblks > before
"""
