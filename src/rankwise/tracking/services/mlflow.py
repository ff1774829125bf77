"""MLflow as a tracking service."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import MissingExtraError
from rankwise.tracking.config import flat
from rankwise.tracking.services.outbox import Line, Refused, RunFacts, Table

_RUN_TAG = "rankwise.run"
_METRICS, _PARAMS, _PARAM_CHARS = 1000, 100, 500  # limits per request, and characters per parameter
_ODD = re.compile(r"[^\w\-./: ]")


@dataclass(slots=True, kw_only=True)
class MlflowSink:
    """Curves, configuration and code version in MLflow; give it to `Tracker(sinks=)` or `Trainer(trackers=)`.

    All attempts of a run continue one MLflow run, found by its id or its tag ``rankwise.run``. MLflow cannot delete
    points. If an attempt repeats steps that were already sent, the existing points stay and no new ones are sent.

    Attributes:
        uri: tracking server; None = MLFLOW_TRACKING_URI, else MLflow's own default.
        experiment: name of the experiment, created if missing; None = MLFLOW_EXPERIMENT_NAME, else "Default".
        run_name: name of the MLflow run; None = that of the run directory.
        tags: additional tags of the run.
    """

    uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    title: str = field(init=False, default="MLflow")
    _client: Any = field(init=False, default=None, repr=False)
    _run_id: str = field(init=False, default="")
    _restored_step: int = field(init=False, default=-1)
    _sent: dict[str, set[int]] = field(init=False, default_factory=dict, repr=False)

    def load(self) -> None:
        """Import MLflow.

        Raises:
            MissingExtraError: MLflow is not installed.
        """
        try:
            import mlflow.tracking as _  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                f"the tracker 'mlflow' needs MLflow ({error}); install it with pip install 'rankwise[mlflow]'"
            ) from error

    def connect(self, run: RunFacts, known_id: str | None) -> str:
        """Find the MLflow run, or create it and log the configuration."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self.uri)
        place = self._experiment_id()
        found = self._client.get_run(known_id) if known_id else self._search(place, run.run_id)
        tags = {_RUN_TAG: run.run_id, "rankwise.attempt": str(run.attempt), **self.tags, **_version_tags(run)}
        if found is None:
            name = self.run_name or run.folder.name
            found = self._client.create_run(place, tags={_RUN_TAG: run.run_id}, run_name=name)
        self._run_id = found.info.run_id
        self._client.update_run(self._run_id, status="RUNNING")
        facts = {**flat(run.config), **flat(run.environment, "env.")}
        params = {_ODD.sub("_", key): str(value)[:_PARAM_CHARS] for key, value in facts.items() if value != {}}
        self._log_facts(tags, params, found)
        if run.attempt > 1:
            self._restored_step = -1 if run.restored_step is None else run.restored_step
            self._sent = {name: self._steps_of(name) for name in found.data.metrics}
        return self._run_id

    def send(self, lines: Sequence[Line]) -> None:
        """Log all values of the lines in as few requests as MLflow allows; a repeated call has no further effect."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        metrics = [
            Metric(name, value, line.time_ms, line.step)
            for line in lines
            for name, value in ((_ODD.sub("_", name), value) for name, value in line.values.items())
            if line.step not in self._sent.get(name, ())
        ]
        try:
            for begin in range(0, len(metrics), _METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[begin : begin + _METRICS])
        except MlflowException as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise Refused(str(error)) from error
            raise

    def send_table(self, table: Table) -> None:
        """Write the table as a JSON file among the run's artifacts, in the layout of MLflow's own tables."""
        columns = table.json_columns
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        place = f"{_ODD.sub('_', table.name)}/step-{table.step:08}.json"
        self._client.log_dict(self._run_id, {"columns": list(columns), "data": rows}, place)

    def finish(self, *, done: bool) -> None:
        """Close the MLflow run."""
        self._client.set_terminated(self._run_id, "FINISHED" if done else "FAILED")

    def _experiment_id(self) -> str:
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _search(self, place: str, run_id: str) -> Any:
        """Return the MLflow run of an attempt that was killed before it recorded the run's id."""
        found = self._client.search_runs([place], f"tags.`{_RUN_TAG}` = '{run_id}'", max_results=1)
        return found[0] if found else None

    def _log_facts(self, tags: Mapping[str, str], params: Mapping[str, str], found: Any) -> None:
        from mlflow.entities import Param, RunTag

        # MLflow parameters cannot change: those of the first attempt stay
        new = [Param(name, value) for name, value in params.items() if name not in found.data.params]
        self._client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        for begin in range(0, len(new), _PARAMS):
            self._client.log_batch(self._run_id, params=new[begin : begin + _PARAMS])

    def _steps_of(self, name: str) -> set[int]:
        """Return the steps past the restored one that have a point already."""
        history = self._client.get_metric_history(self._run_id, name)
        return {point.step for point in history if point.step > self._restored_step}


def _version_tags(run: RunFacts) -> dict[str, str]:
    code = run.environment.get("code") or {}
    if not code:
        return {}
    return {"mlflow.source.git.commit": str(code["commit"]), "rankwise.git.dirty": str(code["dirty"])}
