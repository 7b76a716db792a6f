"""How the page looks: the system's own letters, room to breathe, light or dark as the reader's device says."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1d2229; --soft: #59616c; --rule: #e3e6ea; --shade: #f6f7f9; --accent: #1769a3;
  --good: #0b7a58; --bad: #b84c00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --ink: #e4e7eb; --soft: #a9b2bd; --rule: #2c323a; --shade: #1b1f26; --accent: #6db3e8;
    --good: #3fbf94; --bad: #f08a45;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1rem 5rem; }
h1 { font-size: clamp(1.7rem, 5vw, 2.4rem); line-height: 1.15; letter-spacing: -.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; line-height: 1.25; letter-spacing: -.01em; margin: 3.5rem 0 .8rem; padding-top: 1.2rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 2rem 0 .5rem; }
p { margin: .6rem 0; max-width: 44rem; text-wrap: pretty; }
p.lead { color: var(--soft); font-size: 1.08rem; }
p.soft, .soft { color: var(--soft); }
p.source { color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
a { color: var(--accent); text-underline-offset: .15em; }
nav { margin: 1.4rem 0 0; display: flex; flex-wrap: wrap; gap: .35rem 1rem; font-size: .92rem; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
code { font: .86em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--shade); border-radius: .6rem; padding: .9rem 1rem; }
.tile b { display: block; font-size: 1.55rem; line-height: 1.2; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .85rem; line-height: 1.4; display: block; margin-top: .2rem; }
.skipped { background: var(--shade); border-left: 3px solid var(--bad); border-radius: .3rem; padding: .6rem 1rem;
  margin: 1.2rem 0; font-size: .9rem; overflow-wrap: anywhere; }
.skipped ul { margin: .3rem 0; padding-left: 1.1rem; }
.scroll { overflow-x: auto; margin: 1rem 0; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: .88rem; line-height: 1.4; font-variant-numeric: tabular-nums; min-width: 60%; }
p.caption { color: var(--soft); font-size: .88rem; line-height: 1.45; margin: 1.4rem 0 0; }
p.caption + .scroll { margin-top: .4rem; }
ul.notes { color: var(--soft); font-size: .82rem; line-height: 1.5; max-width: 44rem; margin: .2rem 0 1.6rem; padding-left: 1.1rem; }
th, td { padding: .42rem .9rem .42rem 0; text-align: right; vertical-align: baseline; border-bottom: 1px solid var(--rule); }
td { white-space: nowrap; }
th.prose { min-width: 11rem; }
th:first-child { text-align: left; }
thead th { font-weight: 600; color: var(--soft); font-size: .8rem; vertical-align: bottom; }
tbody th { font-weight: 500; }
td small { display: block; color: var(--soft); font-size: .78rem; }
td .missing { color: var(--soft); }
tr.ours th { color: var(--accent); font-weight: 650; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.6rem 2rem; margin: 1.4rem 0; }
figure { margin: 0; min-width: 0; }
figure img { display: block; width: 100%; height: auto; max-width: 34rem; }
.wide img { max-width: 46rem; }
figcaption { color: var(--soft); font-size: .84rem; line-height: 1.45; margin-top: .5rem; max-width: 34rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
.claim { border: 1px solid var(--rule); border-radius: .6rem; padding: .9rem 1.1rem; margin: .9rem 0; }
.claim h3 { margin: 0 0 .2rem; }
.claim p { margin: .25rem 0; }
.verdict { display: inline-block; font-size: .8rem; font-weight: 650; margin-bottom: .2rem; }
.verdict.good { color: var(--good); } .verdict.bad { color: var(--bad); } .verdict.open { color: var(--soft); }
footer { margin-top: 4rem; color: var(--soft); font-size: .84rem; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""
