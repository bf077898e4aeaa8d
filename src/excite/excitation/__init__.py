"""Is training persistently excited? Definition (`gramian`), theorem (`certificate`) and assumption (`acuteness`)."""

from excite.excitation.along_path import (
    Excitation,
    PathCertificate,
    Smoothness,
    certify,
    smoothness,
    step_size_decay,
)
from excite.excitation.assumption import FEWEST_MOMENTS, Acuteness, acuteness, choose_batch_size
from excite.excitation.definition import Gramian, gramian, simulate
from excite.excitation.in_expectation import ExpectedAcuteness, expected_acuteness
from excite.excitation.theorem import Certificate, Span, certificate

__all__ = ["FEWEST_MOMENTS", "Acuteness", "Certificate", "Excitation", "ExpectedAcuteness", "Gramian"]
__all__ += ["PathCertificate", "Smoothness", "Span", "acuteness", "certificate", "certify", "choose_batch_size"]
__all__ += ["expected_acuteness", "gramian", "simulate", "smoothness", "step_size_decay"]
