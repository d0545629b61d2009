"""How reports look: colours of light and dark in variables, so that pictures follow them.

Entries take colours that eyes of every kind tell apart, each dark (or light) enough for a thin line on the page; their
shapes differ as well. The heat map goes from orange over the page's own grey to blue, evenly light on both sides; its
numbers keep a contrast above 4.5 on every step. `tests/test_report.py` measures all of it.
"""

from __future__ import annotations

ENTRIES = (
    ("#57606a", "#9da7b3"),
    ("#0b62b0", "#62b0f5"),
    ("#c04a00", "#ff9a57"),
    ("#00795a", "#37c799"),
    ("#a13b7b", "#ee93c8"),
    ("#8a6400", "#e3b341"),
    ("#5b4bb5", "#ab9ff2"),
    ("#7a3e22", "#d6a28a"),
)
"""Of plain decoding and of others in turn: in light, in dark."""

PARTS = {
    "prefill": ("#8c959f", "#6e7781"),
    "draft": ("#e69f00", "#d18f00"),
    "score": ("#2f7fc1", "#3f8fd2"),
    "read": ("#7fc4ee", "#a8d8f5"),
    "judge": ("#2a9d7c", "#2fb08c"),
    "rest": ("#d0a5c0", "#8f5f7f"),
    "untold": ("#b8c0c8", "#57606a"),
    "first": ("#2f7fc1", "#3f8fd2"),
    "later": ("#b9d7ef", "#244a6b"),
    "energy": ("#2a9d7c", "#2fb08c"),
}
"""What time and energy go to."""

HEAT = (
    ("#8f3a00", "#ffffff", "#ffa566", "#1b0d02"),
    ("#b8520b", "#ffffff", "#e07a30", "#1b0d02"),
    ("#f0a566", "#1b1f24", "#a85515", "#ffffff"),
    ("#f8cfa8", "#1b1f24", "#743a0d", "#ffffff"),
    ("#fce9d8", "#1b1f24", "#452a15", "#f0f3f6"),
    ("#eef1f4", "#1b1f24", "#2a3038", "#f0f3f6"),
    ("#deedf9", "#1b1f24", "#15304a", "#f0f3f6"),
    ("#b5d8f2", "#1b1f24", "#12466f", "#ffffff"),
    ("#79b8e6", "#1b1f24", "#1465a5", "#ffffff"),
    ("#1f72b5", "#ffffff", "#4a9fe0", "#06131f"),
    ("#0b4a80", "#ffffff", "#8cc8ff", "#06131f"),
)
"""From much slower to much faster: background and ink in light, background and ink in dark."""


def _variables(shade: int) -> str:
    entries = "".join(f"--e{i}:{colors[shade]};" for i, colors in enumerate(ENTRIES))
    parts = "".join(f"--p-{name}:{colors[shade]};" for name, colors in PARTS.items())
    heat = "".join(f"--h{i}:{c[2 * shade]};--i{i}:{c[2 * shade + 1]};" for i, c in enumerate(HEAT))
    return entries + parts + heat


_ENTRIES = "".join(f".e{i}{{--c:var(--e{i})}}\n" for i in range(len(ENTRIES)))
_PARTS = "".join(f".p-{name}{{fill:var(--p-{name});background:var(--p-{name})}}\n" for name in PARTS)
_HEAT = "".join(f".h{i}{{background:var(--h{i});color:var(--i{i})}}\n" for i in range(len(HEAT)))

REPORT_STYLE = f"""\
:root{{{_variables(0)}--warn:#fff6e0;--warn-line:#c77700;--link:#0b62b0}}
@media (prefers-color-scheme:dark){{:root{{{_variables(1)}--warn:#2b2111;--warn-line:#e3a33b;--link:#7cc0ff}}}}
html{{-webkit-text-size-adjust:100%;scroll-behavior:smooth}}
main{{max-width:68rem;padding:2.5rem 1.25rem 5rem}}
a{{color:var(--link);text-underline-offset:.15em}}
a:focus-visible,[tabindex]:focus-visible,summary:focus-visible{{outline:2px solid var(--link);outline-offset:2px}}
bdi,h1,h2,h3,p,li,td,th,figcaption,summary{{overflow-wrap:anywhere}}
p{{max-width:44rem}}
article+article{{margin-top:5rem;border-top:3px solid var(--ink);padding-top:2.5rem}}
.kicker{{margin:0 0 .6rem;color:var(--soft);font-size:.9rem}}
h1{{font-size:clamp(1.5rem,1.1rem + 1.9vw,2.35rem);line-height:1.22;letter-spacing:-.015em;font-weight:650;\
margin:0 0 .9rem;max-width:50rem;text-wrap:pretty}}
.lead{{font-size:1.05rem;color:var(--soft);margin:0 0 1.5rem;max-width:46rem}}
h2{{font-size:1.35rem;letter-spacing:-.01em;line-height:1.3;margin:0 0 1rem}}
h3{{font-size:1.05rem;margin:0 0 .15rem}}
section{{margin-top:3.5rem;padding-top:1.5rem;border-top:1px solid var(--line);scroll-margin-top:1rem}}
section>p,.beside p{{color:var(--soft);font-size:.95rem}}
nav+h1{{margin-top:1rem}}
nav a{{text-decoration:none}}
nav a:hover{{text-decoration:underline}}
nav{{display:flex;flex-wrap:wrap;gap:.35rem 1.1rem;margin:2rem 0 0;font-size:.95rem}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.75rem,1fr));gap:1px;background:var(--line);\
border:1px solid var(--line);border-radius:.6rem;overflow:hidden;margin:1.75rem 0}}
.tiles div{{background:var(--paper);padding:.9rem 1rem}}
.tiles dt,.tiles dd{{overflow-wrap:anywhere}}
.tiles dt{{color:var(--soft);font-size:.82rem}}
.tiles dd{{margin:.1rem 0 0;font-size:1.3rem;font-weight:650;letter-spacing:-.01em;line-height:1.25;\
font-variant-numeric:tabular-nums}}
.tiles .under{{color:var(--soft);font-size:.8rem;font-weight:400;letter-spacing:0;line-height:1.4}}
aside{{border-radius:.6rem;padding:1rem 1.25rem;margin:1.5rem 0;border:1px solid var(--line)}}
aside.warn{{background:var(--warn);border-color:var(--warn-line);border-inline-start-width:.4rem}}
aside h2{{font-size:1rem;margin:0 0 .4rem;letter-spacing:0}}
aside ul{{margin:0;padding-inline-start:1.2rem}}
aside li{{margin:.25rem 0;max-width:48rem}}
aside p{{margin:0}}
.charts{{display:grid;gap:1.5rem;grid-template-columns:minmax(0,29rem);margin:.5rem 0 1rem}}
.charts.many{{grid-template-columns:repeat(auto-fill,minmax(min(100%,15rem),1fr));gap:1.5rem 2rem}}
figure{{margin:0;min-width:0}}
figcaption{{color:var(--soft);font-size:.88rem;margin-top:.4rem}}
.many figure{{max-width:18rem}}
.many figcaption{{margin-top:.1rem;font-size:.82rem}}
.whose,.keys li{{display:flex;align-items:baseline}}
.whose{{margin:0 0 .2rem;font-weight:600;font-size:.92rem}}
.chart{{display:block;width:100%;height:auto;overflow:hidden}}
.chart text{{font:12px system-ui,"Segoe UI","Noto Sans",sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}}
.chart .name,.chart .value{{fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:5px;\
stroke-linejoin:round}}
.chart .name{{font-weight:600}}
.chart .grid{{stroke:var(--line);stroke-width:1}}
.chart .mark{{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:4 3}}
.chart .fit{{stroke:var(--ink);stroke-width:1.75}}
.whisker{{stroke:var(--c);stroke-width:2}}
.dot{{fill:var(--c);stroke:var(--paper);stroke-width:.75}}
.dots .dot{{fill-opacity:.8}}
.chart .line{{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}}
.chart .bar{{fill:var(--c)}}
.chart .mean{{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:3 2}}
.chart .part{{stroke:var(--paper);stroke-width:.75}}
.key{{width:.8em;height:.8em;margin-inline-end:.45em;vertical-align:-.04em;flex:none}}
.swatch{{display:inline-block;width:.85em;height:.85em;border-radius:.15em;margin-inline-end:.45em;vertical-align:-.05em}}
.keys{{display:flex;flex-wrap:wrap;gap:.35rem 1.25rem;list-style:none;padding:0;margin:0 0 1.25rem;font-size:.88rem;\
max-width:44rem}}
{_ENTRIES}{_PARTS}{_HEAT}\
.wide{{max-width:100%;margin:0}}
table{{margin:0;font-size:.92rem;line-height:1.35}}
.beside .caption,.caption{{color:var(--soft);font-size:.88rem;margin:0 0 .25rem}}
.tabled{{margin:1.25rem 0}}
.beside{{display:grid;gap:0 3rem;grid-template-columns:minmax(0,1fr)}}
.beside>div{{min-width:0}}
@media (min-width:60rem){{
.beside{{grid-template-columns:minmax(0,27rem) minmax(0,1fr)}}
.beside>div:last-child>:first-child{{margin-top:.25rem}}
.columns{{columns:2;column-gap:3rem}}
}}
.columns .tabled{{break-inside:avoid;margin:0;padding:.75rem 0}}
th,td,td:last-child,th:last-child{{text-align:right;vertical-align:top;padding:.45rem 1rem .45rem 0}}
th:first-child{{text-align:left}}
th{{white-space:nowrap}}
th bdi{{display:inline-block;width:max-content;max-width:15rem;white-space:normal;vertical-align:top}}
tbody th{{padding-inline-end:1.5rem}}
.wide th:first-child{{position:sticky;left:0;background:var(--paper)}}
thead th{{vertical-align:bottom;line-height:1.25}}
thead th bdi{{max-width:8.5rem}}
th:last-child,td:last-child{{padding-inline-end:.25rem}}
td{{white-space:nowrap}}
td small{{display:block;white-space:pre;line-height:1.4;color:var(--soft);font-size:.78rem}}
td.best{{font-weight:700}}
td.best small{{font-weight:400}}
.star{{font-size:.8em;margin-inline-end:.25em}}
.words td,.words td:last-child,.words th:last-child,.words thead th{{text-align:left}}
.words td{{white-space:normal;min-width:6rem}}
.beside .numbers td,.beside .numbers th{{padding-inline-end:.75rem}}
.words td,.words tbody th{{padding-top:.25rem;padding-bottom:.25rem;font-size:.88rem}}
.words tbody th{{font-weight:400;color:var(--soft)}}
table.heat{{border-collapse:separate;border-spacing:3px}}
.heat td,.heat td:last-child{{text-align:center;padding:.55rem .45rem;border:0;border-radius:.3rem;min-width:4.75rem}}
.heat thead th,.heat thead th:last-child{{text-align:center;padding:.2rem .35rem;border:0}}
.heat thead th:not(:first-child) bdi{{max-width:6.25rem}}
.heat th:first-child,.heat thead th:first-child{{text-align:left;border:0;padding-top:.55rem}}
.heat .star{{margin:0 0 0 .3em}}
.heatkey{{display:flex;flex-wrap:wrap;align-items:center;gap:.4rem .75rem;font-size:.85rem;color:var(--soft)}}
.heatkey ol{{display:flex;flex-wrap:wrap;list-style:none;margin:0;padding:0;gap:2px}}
.heatkey li{{font-size:.72rem;padding:.2rem .35rem;border-radius:.2rem;min-width:2.3rem;text-align:center;\
font-variant-numeric:tabular-nums}}
details{{margin:1.25rem 0}}
summary{{cursor:pointer;color:var(--link)}}
pre{{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.85rem 1rem;\
white-space:pre-wrap;overflow-wrap:anywhere;\
font-size:.88rem;line-height:1.5}}
blockquote{{margin:1rem 0;padding:.1rem 0 .1rem 1rem;border-inline-start:3px solid var(--line);color:var(--soft);\
white-space:pre-wrap;overflow-wrap:anywhere;max-width:48rem}}
.tokens{{margin:2rem 0}}
.tokens .facts{{display:block;max-width:none}}
.tokens .text{{font-size:1rem;line-height:2.05}}
@media (max-width:40rem){{tbody th bdi{{max-width:9rem}}main{{padding:1.5rem 1rem 3rem}}section{{margin-top:2.25rem}}}}
@media print{{
main{{max-width:none;padding:0}}nav{{display:none}}
.wide{{overflow:visible}}figure,.tiles,aside,tr{{break-inside:avoid}}h2,h3{{break-after:avoid}}
.heat td,.heatkey li,.swatch,.part,.dot,.bar{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}}}
"""
