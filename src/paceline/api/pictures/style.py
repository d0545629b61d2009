"""How the page looks. Hues are Okabe and Ito's, which eyes of every kind tell apart; each source also has a line of its
own kind under its tokens, for print and for whoever sees no colours. Text on every colour keeps a contrast above 7.
What was drafted stands on a colour; the model's own tokens stand on none, over a line that says why they are its own.
"""

from __future__ import annotations

COLORS = (
    ("#bfe3f7", "#0a4a6b", "#56b4e9", "solid"),
    ("#fbdfa6", "#5f3c00", "#e69f00", "dashed"),
    ("#b5e6d6", "#00523c", "#1fb58b", "double"),
    ("#f7f1a1", "#4c4600", "#f0e442", "dotted"),
    ("#f0cde0", "#6d2049", "#cc79a7", "solid"),
)
"""Of each drafter: background in light, background in dark, line, kind of line."""


def _variables(shade: int) -> str:
    return "".join(f"--s{i}:{color[shade]};" for i, color in enumerate(COLORS, start=1))


def _sources() -> str:
    return "".join(
        f".s{i}{{background:var(--s{i});border-bottom:3px {color[3]} {color[2]}}}\n"
        for i, color in enumerate(COLORS, start=1)
    )


STYLE = f"""\
:root{{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--line:#d1d9e0;\
--bar:#a5aeb8;--refused:#b42318;--bonus:#1b1f24;{_variables(0)}}}
@media (prefers-color-scheme:dark){{:root{{\
--ink:#e6edf3;--soft:#9da7b3;--paper:#0d1117;--card:#161b22;--line:#30363d;\
--bar:#5c646d;--refused:#ff9b8f;--bonus:#e6edf3;{_variables(1)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI","Noto Sans",sans-serif}}
main{{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}}
h1{{font-size:1.5rem;margin:0 0 .5rem}}
h2{{font-size:1.15rem;margin:2rem 0 .5rem}}
.facts{{color:var(--soft);font-size:.875rem;margin:.25rem 0;display:flex;flex-wrap:wrap;gap:.1rem 1rem}}
.facts b{{color:var(--ink);font-weight:600}}
.totals{{display:flex;flex-wrap:wrap;gap:.5rem;margin:.75rem 0}}
.totals div{{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.35rem .75rem}}
.totals dt{{color:var(--soft);font-size:.75rem}}
.totals dd{{margin:0;font-size:1.15rem;font-weight:600;font-variant-numeric:tabular-nums}}
.legend{{display:flex;flex-wrap:wrap;gap:.4rem 1.25rem;list-style:none;margin:.75rem 0;padding:0;font-size:.9rem}}
.legend .t{{padding:.1rem .4rem}}
.legend .note{{color:var(--soft)}}
.text{{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem;font-size:1.1rem;\
line-height:2;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext}}
.prompt{{color:var(--soft)}}
.t{{padding:.15em 0;border-bottom:3px solid transparent;border-radius:2px}}
.own,.plain{{border-bottom:1px solid var(--line)}}
.corrected{{color:var(--refused);border-bottom:3px solid var(--refused)}}
.bonus{{border-bottom:3px double var(--bonus)}}
{_sources()}.text .t{{box-shadow:inset 0 0 0 .5px var(--card)}}
.text .begin{{border-inline-start:1px solid var(--bar)}}
.text .t:hover{{outline:2px solid var(--ink);outline-offset:-1px}}
.nl{{font-style:normal}}
.nl::before{{content:"\\21b5";color:var(--soft);font-size:.8em}}
.end::before{{content:"\\25a0";color:var(--soft)}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}}
th,td{{padding:.3rem .9rem .3rem 0;text-align:right;border-bottom:1px solid var(--line);font-weight:400}}
thead th{{color:var(--soft);font-size:.85rem}}
th:first-child,td:last-child,th:last-child{{text-align:left}}
tbody th{{font-weight:600}}
@media print{{.t{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}
"""
