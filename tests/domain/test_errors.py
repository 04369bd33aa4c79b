"""The exception tree is split by who must act."""

from orchestrator.domain import errors


def test_tree() -> None:
    assert issubclass(errors.NotFound, errors.UserError)
    assert issubclass(errors.Conflict, errors.UserError)
    for kind in (errors.UserError, errors.ConfigError, errors.Unavailable):
        assert kind.__mro__[1] is errors.TurnqueueError
    problem = errors.Conflict("ALREADY_ENDED", "it has ended")
    assert (problem.code, problem.message, str(problem)) == ("ALREADY_ENDED", "it has ended", "it has ended")
