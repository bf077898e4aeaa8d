"""Is training persistently excited? Definition (`gramian`), theorem (`certificate`) and assumption (`acuteness`)."""

from excite.excitation.along_path import (
    Excitation,
    PathCertificate,
    Smoothness,
    StepSizes,
    certify,
    smoothness,
    step_size_decay,
)
from excite.excitation.assumption import FEWEST_MOMENTS, Acuteness, acuteness, choose_batch_size
from excite.excitation.definition import Gramian, gramian, simulate
from excite.excitation.in_expectation import ExpectedAcuteness, expected_acuteness
from excite.excitation.theorem import Certificate, CertifiedDescent, Span, certificate, certify_descent

__all__ = ["FEWEST_MOMENTS", "Acuteness", "Certificate", "CertifiedDescent", "Excitation", "ExpectedAcuteness"]
__all__ += ["Gramian", "PathCertificate", "Smoothness", "Span", "StepSizes", "acuteness", "certificate", "certify"]
__all__ += ["certify_descent", "choose_batch_size", "expected_acuteness", "gramian", "simulate", "smoothness"]
__all__ += ["step_size_decay"]
