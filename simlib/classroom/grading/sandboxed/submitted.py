"""`Submitted`: a student's function as an examiner holds it, as bytes that it never unpickles."""

from __future__ import annotations

import inspect
import pickle

KINDS = {kind.name: kind for kind in inspect._ParameterKind}


class Submitted:
    """A function that only ranks can call.

    The kernel that examines holds its bytes and hands them to the ranks, where it is a function
    again: nothing that a student wrote runs in the kernel.

    Parameters
    ----------
    question : str
        The question it answers.
    payload : bytes
        The function, by cloudpickle.
    parameters : list of (str, str, bool)
        Name, kind and whether there is a default, for each parameter; None where nobody knows.
    """

    __slots__ = ("__name__", "__signature__", "_payload", "question")

    def __init__(self, question, payload, parameters):
        self.__name__ = self.question = question
        self._payload = payload
        if parameters is not None:
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        name, KINDS[kind], default=None if has_default else inspect.Parameter.empty
                    )
                    for name, kind, has_default in parameters
                ]
            )

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.question} can be called by ranks only")

    def __reduce__(self):
        return pickle.loads, (self._payload,)


def parameters_of(function):
    """The parameters of a function as plain data, for `Submitted`; None where nobody knows."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(one.name, one.kind.name, one.default is not one.empty) for one in found]
