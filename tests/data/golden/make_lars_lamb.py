#!/usr/bin/env python3
"""make_lars_lamb.py > golden_lars_lamb.json: 10 steps of LARS and LAMB in float64.

f = 1/2 sum_i a_i (w_i - t_i)^2 over two parameters, a weight and a bias, so that the gradient is
a_i (w_i - t_i). Sources of the formulas:
  LARS: You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1.
  LAMB: You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
        algorithm 2 with phi(x) = x and the moments corrected for their start at 0.
Biases are left out of the adaptation in both, and have no decay. clip: the gradients are first
scaled by min(1, clip / (norm + 1e-6)), norm being that of all gradients together.
"""
import json
import math

STEPS = 10
state = 21


def draw():
    """In [-1, 1), exact in float32; generator as in the other golden files."""
    global state
    state = (state * 1664525 + 1013904223) % 2**32
    return ((state >> 8) - 2**23) / 2**23


PARAMS = [dict(name="weight", count=7), dict(name="bias", count=3)]
for p in PARAMS:
    for key in ("w0", "t"):
        p[key] = [draw() for _ in range(p["count"])]
    p["a"] = [1 + draw() / 2 for _ in range(p["count"])]


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def clipped(grads, limit):
    whole = norm([g for grad in grads for g in grad])
    factor = min(1.0, limit / (whole + 1e-6)) if limit else 1.0
    return [[g * factor for g in grad] for grad in grads]


def lars(o, k, weight, w, g, s):
    decay = o.get("weight_decay", 0) if weight else 0
    local = o["trust"] * norm(w) / (norm(g) + decay * norm(w)) if weight else 1.0
    for i in range(len(w)):
        s["v"][i] = o.get("momentum", 0) * s["v"][i] + o["lr"] * local * (g[i] + decay * w[i])
    return [w[i] - s["v"][i] for i in range(len(w))]


def lamb(o, k, weight, w, g, s):
    decay = o.get("weight_decay", 0) if weight else 0
    b1, b2 = o["beta1"], o["beta2"]
    u = []
    for i in range(len(w)):
        s["m"][i] = b1 * s["m"][i] + (1 - b1) * g[i]
        s["v"][i] = b2 * s["v"][i] + (1 - b2) * g[i] ** 2
        m, v = s["m"][i] / (1 - b1**k), s["v"][i] / (1 - b2**k)
        u.append(m / (math.sqrt(v) + o["eps"]) + decay * w[i])
    ratio = norm(w) / norm(u) if weight else 1.0
    return [w[i] - o["lr"] * ratio * u[i] for i in range(len(w))]


def run(name, rule, **options):
    ws = [list(p["w0"]) for p in PARAMS]
    states = [dict(m=[0.0] * p["count"], v=[0.0] * p["count"]) for p in PARAMS]
    after = []
    for k in range(1, STEPS + 1):
        grads = [[a * (w - t) for a, w, t in zip(p["a"], ws[i], p["t"])]
                 for i, p in enumerate(PARAMS)]
        grads = clipped(grads, options.get("clip_grad_norm", 0))
        ws = [rule(options, k, p["name"] == "weight", ws[i], grads[i], states[i])
              for i, p in enumerate(PARAMS)]
        after.append(ws[0] + ws[1])
    return dict(name=name, optimizer=rule.__name__, options=options, w_after_step=after)


RUNS = [
    run("lars_plain", lars, lr=0.5, trust=0.1),
    run("lars_momentum_decay", lars, lr=0.2, trust=0.05, momentum=0.9, weight_decay=0.1),
    run("lars_clip", lars, lr=0.2, trust=0.05, momentum=0.9, weight_decay=0.1, clip_grad_norm=0.5),
    run("lamb", lamb, lr=0.05, beta1=0.9, beta2=0.999, eps=1e-6),
    run("lamb_decay", lamb, lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.2),
    run("lamb_decay_clip", lamb, lr=0.05, beta1=0.9, beta2=0.999, eps=0.1, weight_decay=0.2,
        clip_grad_norm=0.5),
]
print(json.dumps(dict(what="w after each step: the weight's 7 elements, then the bias's 3",
                      params=PARAMS, runs=RUNS), indent=1))
