"""Notebooks show what is printed, and nothing in a text becomes markup."""

import torch

from excite import html
from excite.excitation import certificate
from excite.lipschitz import LipschitzEstimate


def test_an_estimate_and_a_certificate_show_their_sentences() -> None:
    estimate = LipschitzEstimate(4.0, (3.0, 5.0), "curvature", True, "a < b")
    assert estimate._repr_html_().startswith("<p>L = 4")
    assert "a &lt; b" in estimate._repr_html_()
    held = certificate(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.5]), torch.zeros(2))
    assert held._repr_html_().startswith("<p>Certified")


def test_lines_are_paragraphs() -> None:
    assert html.paragraphs("One.\nTwo & three.") == "<p>One.</p><p>Two &amp; three.</p>"
