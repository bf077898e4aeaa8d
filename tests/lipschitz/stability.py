"""The edge of stability of torch's optimizers on a quadratic, where it is known."""


def largest_stable_rate(
    curvature: float,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    preconditioner: float = 1.0,
) -> float:
    """The largest rate at which torch's SGD is stable on ½ λ θ², where λ is the `curvature`.

    With v ← β v + (1 − τ) λ θ and θ ← θ − η v, the characteristic polynomial z² − (1 + β − η (1 − τ) λ) z + β has its
    roots inside the unit circle while η (1 − τ) λ < 2 (1 + β); Nesterov's step, θ ← θ − η (λ θ + β v), while
    η λ < 2 (1 + β) / (1 + 2 β). Weight decay w replaces λ by λ + w. For Adam with a fixed preconditioner P = √v̂ + ε,
    pass `momentum=β₁, dampening=β₁, preconditioner=P`: the edge is 2 (1 + β₁) / (1 − β₁) · P/λ.
    """
    edge = 2 * (1 + momentum) / (1 + 2 * momentum if nesterov else 1 - dampening)
    return edge * preconditioner / (curvature + weight_decay)
