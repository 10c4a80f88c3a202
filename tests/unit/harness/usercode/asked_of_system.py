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
    '''Whether a piece as large is mapped by itself; else the heap grows for it. What lies free in
    the heap is used up first: where pieces of the program's own lay side by side, one may fit.'''
    before = after = library.mallinfo2()
    while after.hblks == before.hblks and after.arena == before.arena:
        held.append(torch.empty(megabytes * 2**20, dtype=torch.uint8))
        after = library.mallinfo2()
    return after.hblks > before.hblks
"""
