import numpy as np
from test_program import *
def test_x(program):
    for n,p in [(30,.5),(60,.5),(40,.3),(50,.7),(80,.2)]:
        for s in range(4):
            g=random_graph(n,p,s); e,b=flat([g])
            outs=[call(program,e,b,seed=x,steps=40) for x in range(4)]
            print(n,p,s,dsatur_colors(g),[len(set(sum(classes(o,b),[]))) for o in outs], len({tuple(sum(classes(o,b),[])) for o in outs}))
