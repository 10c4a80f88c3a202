"""A self-contained page: nothing is fetched, no script runs, light or dark as the reader has it."""

from html import escape

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b2126; --soft: #5a6570; --rule: #d8dee4;
  --shade: #eceff2; --good: #1a7f37; --bad: #c62828; --unsure: #8f5f00; --blue: #0b62c4;
  --bar: #9db4cc; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e4e8ec; --soft: #9ba7b2;
  --rule: #333b43; --shade: #242b32; --good: #4cc264; --bad: #ff7b72; --unsure: #e0b040;
  --blue: #6cb3ff; --bar: #4d6580; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); margin: 0 auto; padding: 1.5rem 1.25rem 3rem;
  max-width: 64rem; font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0 0.25rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0.5rem; }
p { margin: 0.3rem 0; } .soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); } .unsure { color: var(--unsure); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; min-width: 60%; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { text-align: left; padding: 0.35rem 1.4rem 0.35rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 0.85rem; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
td:first-child { overflow-wrap: anywhere; min-width: 8rem; }
tr.open td { border-bottom: none; padding-bottom: 0; }
tr.note td { color: var(--soft); padding: 0 0 0.4rem 1rem; }
tr.quiet td { color: var(--soft); } td.verdict { font-weight: 700; white-space: nowrap; }
ul.notes { list-style: none; padding: 0; margin: 0.75rem 0; }
ul.notes li { padding: 0.3rem 0.75rem; margin: 0.25rem 0; border-left: 3px solid var(--rule); }
ul.notes li.bad { border-color: var(--bad); color: inherit; }
ul.notes li.warning { border-color: var(--unsure); }
ul.notes b { font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; margin: 0.5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
code { background: var(--shade); padding: 0.1rem 0.35rem; border-radius: 3px; font-size: 0.9em; }
details { border: 1px solid var(--rule); border-radius: 6px; padding: 0.5rem 1rem;
  margin: 0.6rem 0; }
summary { cursor: pointer; font-weight: 600; } a { color: var(--blue); }
figure { margin: 0.5rem 0; } figcaption { color: var(--soft); font-size: 0.85rem; }
svg { display: block; width: 100%; min-width: 36rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick, svg .title { fill: var(--soft); font-size: 11px; }
svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--rule); }
svg .one { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .band { fill: var(--shade); } svg .pane { fill: none; stroke: var(--rule); }
svg .whisker { stroke: var(--ink); stroke-width: 2; } svg .point { fill: var(--ink); }
svg .whisker.good { stroke: var(--good); } svg .point.good { fill: var(--good); }
svg .whisker.bad { stroke: var(--bad); } svg .point.bad { fill: var(--bad); }
svg .whisker.unsure { stroke: var(--unsure); } svg .point.unsure { fill: var(--unsure); }
svg .median { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .track { fill: none; stroke-width: 1; opacity: 0.35; stroke: var(--blue); }
svg .dots { fill: none; stroke-width: 4; stroke-linecap: round; stroke: var(--blue); }
svg .track.baseline, svg .dots.baseline { stroke: var(--soft); }
svg .beyond { fill: var(--bad); } svg .bar { fill: var(--bar); }
footer { margin-top: 2.5rem; color: var(--soft); font-size: 0.85rem; }
@media print { details { break-inside: avoid; } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, body: str) -> str:
    """`body` is HTML and has been escaped; `title` has not."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
