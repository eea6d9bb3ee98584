import sys

from headwise.check import check
from tests.check.written_articles import MISTAKES, write

a, b = int(sys.argv[1]), int(sys.argv[2])
bad = 0
for s in range(a, b):
    art = write(s)
    try:
        r = check(art.text)
    except Exception as e:
        print(s, "ERR", e)
        bad += 1
        continue
    if r.findings or r.unmatched:
        bad += 1
        print(
            "RIGHT",
            s,
            [(f.line, f.printed, f.what.en, f.verdict) for f in r.findings[:3]],
            [(u.line, u.text, u.why.en) for u in r.unmatched[:3]],
        )
    m = MISTAKES[s % len(MISTAKES)]
    art = write(s, m)
    r = check(art.text)
    roots = [f for f in r.findings if f.verdict == "wrong"]
    if bool(roots) != art.planted:
        bad += 1
        print(
            "FAULT",
            s,
            m,
            art.planted,
            [(f.line, f.printed, f.what.en, f.verdict) for f in r.findings[:3]],
            [(u.line, u.text, u.why.en, u.labelled) for u in r.unmatched[:3]],
        )
print("bad", bad, "of", 2 * (b - a))
