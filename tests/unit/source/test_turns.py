"""Whether a turn of a loop needs the one before."""

import ast

from ridgeline.source.file import SourceFile
from ridgeline.source.loops import carried, changes_state

CLASSES = """class Env:
    def step(self, a):
        self.s = 0.9 * self.s + a
        return self.s
    def look(self):
        return self.s
    def twice(self, a):
        self.step(a)
class Kept:
    def add(self, x):
        self.all.append(x)
        self.n += 1
"""


def test_names_read_before_they_are_written_come_from_the_turn_before() -> None:
    for body, said in {
        "h = cell(x, h)": ("h",),
        "a = pi(obs)\nobs = env(a)": ("obs",),
        "h, c = cell(x, (h, c))": ("h", "c"),
        "y = mix(self.s)\nself.s = y": ("self.s",),
        "with no_grad():\n    a = pi(obs)\nif a:\n    obs = a": ("obs",),
        "out[t] = f(out[t - 1])": ("out",),
        "x += f(x)": ("x",),
        "x.copy_(f(x))": ("x",),
        "ids = cat([ids, pick(model(ids))])": ("ids",),
        "h = 0.9 * h + x": ("h",),
    }.items():
        assert carried(ast.parse(body).body) == said, body


def test_what_only_grows_or_is_a_turns_own_is_not_carried() -> None:
    for body in (
        "h = embed(row)\nh = relu(h)",
        "total = total + row.sum()",
        "total += row.sum()",
        "total = a + total + b",
        "best = torch.maximum(best, f(row))",
        "i += 1\ny = x[i]",
        "out[t] = f(x[t])",
        "kept[name] = d * kept[name] + v",
        "total.add_(row.sum())",
        "rows.append(f(row))",
    ):
        assert carried(ast.parse(body).body) == (), body


def test_objects_whose_methods_leave_them_changed() -> None:
    for text, said in {
        "env = Env()\nfor t in r:\n    y = env.step(t)": "env",
        "env, kept = Env(), Kept()\nfor t in r:\n    kept.add(env.look())": "",
        "env = Env()\nfor t in r:\n    env.twice(t)": "env",
        "for t in r:\n    y = world.step(t)": "world",
        "for t in r:\n    env = Env()\n    env.step(t)": "",
        "for world in worlds:\n    y = world.step(1)": "",
        "import torch\nfor t in r:\n    y = torch.step(t)": "",
        "for t in r:\n    y = gym.advance(t)": "",
    }.items():
        source = SourceFile("a.py", CLASSES + text)
        loop = next(n for n in ast.walk(source.module) if isinstance(n, ast.For))
        assert changes_state(source, loop, loop.body) == said, text
