"""Workloads of a user: good ones that differ tenfold, so that a busy machine cannot hide it, and
every kind of bad one."""

import os
import pathlib
import sys
import threading
import time
import unittest

import torch

ones = torch.arange(64.0).reshape(8, 8)


def _sleeping(seconds):
    def run():
        time.sleep(seconds)
        return ones @ ones

    return run


def slow():
    return _sleeping(0.020)


def fast():
    return _sleeping(0.002)


calls = 0


def counted():
    def run():
        global calls
        calls += 1
        if calls == 1500:
            pathlib.Path("counted").touch()
        time.sleep(0.002)
        return ones @ ones

    return run


def plain():
    time.sleep(0.002)
    return ones @ ones


def wrong():
    def run():
        time.sleep(0.002)
        return ones @ ones * 1.01

    return run


def raises():
    def run():
        raise ValueError("boom [bold]")

    return run


def raises_when_built():
    raise KeyError("missing")


def hangs():
    return lambda: time.sleep(3600)


def leaves():
    sys.exit("I am a script")


def ends_its_process():
    return lambda: os._exit(7)


def prints():
    def run():
        print("a line of the user's")
        return ones @ ones

    return run


def nothing():
    return lambda: None


def draws():
    return lambda: torch.randn(8, 8)


def starts_threads():
    def run():
        threading.Thread(target=time.sleep, args=(3600,)).start()
        return ones @ ones

    return run


def one_thread():
    torch.set_num_threads(1)
    return _sleeping(0.002)


def needs(n):
    return n


def unable():
    raise unittest.SkipTest("needs a GPU with fp8")


number = 3
