"""Trains: from a configuration to a run's directory, or on from where an interrupted run stopped."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from prometheus_client import CollectorRegistry
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat

from agentenv.envs.metered import MeteredVectorEnv
from agentenv.monitoring import RunDirectory, RunWriter
from agentenv.monitoring.metrics import EnvironmentMetrics, render
from agentenv.train import checkpoint, curve
from agentenv.train.environments import MakeEnvs, sandboxed
from agentenv.train.evaluation import Evaluation, play, random_policy
from agentenv.train.interrupt import StopRequest
from agentenv.train.jobs import Changes, Job, Source, new_job, resumed_job
from agentenv.train.learner import Built, build, use_threads
from agentenv.train.loop import Notes, Stopped, TrainingLoop, checkpoints_in, latest_checkpoint
from agentenv.train.manifest import evaluation_seed, manifest
from agentenv.train.metrics_file import forget_after
from agentenv.train.progress import Progress, automatic
from agentenv.train.registry import Algorithm, algorithm
from agentenv.train.result import RunResult
from agentenv.train.vec_env import GymnasiumVecEnv


def train(
    config: Source | None = None,
    *,
    max_steps: int | None = None,
    num_envs: int | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    make_envs: MakeEnvs = sandboxed,
    stop_at: int | None = None,
) -> RunResult:
    """Trains an agent as `config` (a YAML file, a mapping or a loaded `Config`) says and returns what it reached.

    `max_steps`, `num_envs` and `seed` replace those of the configuration. The run's directory is made in `run_dir` (default: `runs`).
    `resume` names a run (directory, id, or "latest") to go on with, exactly where its last checkpoint stands; of the configuration only
    `max_steps` may then change. `progress` is what is shown (default: a live display on a terminal, lines elsewhere), `make_envs` where
    the environments come from. At `stop_at` steps, or at Ctrl-C or SIGTERM, it finishes the update under way, saves, and returns with
    state "interrupted".

    Raises `ConfigError`, `CapabilityError` (algorithm and environment do not fit), `NotFound` (algorithm, run), `InfrastructureError`
    (sandboxes that cannot start).
    """
    display = progress or automatic()
    changes = Changes(max_steps, num_envs, seed)
    job = new_job(config, changes) if resume is None else resumed_job(resume, config, changes)
    chosen = algorithm(job.training.algorithm)
    if job.resumed is not None:
        writer = RunWriter.resume(job.resumed, max_steps=job.training.max_steps)
    else:
        writer = RunWriter.create(run_dir or "runs", max_steps=job.training.max_steps)
    try:
        with writer, ExitStack() as stack:
            display.begin(job.title, writer.run.path)
            return _Session(job, chosen, writer, display, make_envs, stack).run(stop_at)
    finally:
        display.close()


class _Session:
    """One go at a run, from opening its environments to its result; all it opens goes on `stack`."""

    def __init__(self, job: Job, chosen: Algorithm, writer: RunWriter, display: Progress, make_envs: MakeEnvs, stack: ExitStack) -> None:
        self.job = job
        self.writer = writer
        self.display = display
        self.make_envs = make_envs
        self.stack = stack
        self.eval_seed = evaluation_seed(job.seed)
        stack.push(self._point_to_checkpoint)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        self.threads = use_threads()
        self.stop = stack.enter_context(StopRequest(self._announce_stop))
        self.metrics = EnvironmentMetrics(CollectorRegistry())
        self.envs = self._open(job.training.num_envs, job.config.environment.name)
        self.built: Built = build(chosen, job.training, self.envs, job.seed)
        # Half as many as train are soon done with an evaluation, and cost half as much to keep.
        players = min(job.training.eval_episodes, max(job.training.num_envs // 2, 1))
        self.eval_envs = self._open(players, f"{job.config.environment.name} (evaluation)")
        self.model = self.built.model
        folder = str(writer.run.tensorboard)
        logger = Logger(folder, [TensorBoardOutputFormat(folder)])
        stack.callback(logger.close)
        self.model.set_logger(logger)

    def run(self, stop_at: int | None) -> RunResult:
        training = self.job.training
        loop = TrainingLoop(
            training,
            self.envs,
            self.writer,
            self.display,
            self.stop,
            self._evaluate_policy,
            lambda: render(self.metrics.registry),
            target=self.built.whole_steps(training),
            stop_at=stop_at,
        )
        loop.init_callback(self.model)
        explanations = self.built.explain(self.job.training)
        for sentence in explanations:
            self.display.say(sentence)
        if self.job.resumed is not None:
            self._restore(loop, self.job.resumed)
        else:
            self.writer.write_manifest(self._manifest() | {"explanations": explanations, "sessions": []})
            loop.notes.random_return = self._evaluate_chance().mean_return
            loop.evaluate_now()
        left = self.job.training.max_steps - int(self.model.num_timesteps)
        state: Literal["finished", "interrupted"] = "finished"
        try:
            if left > 0:
                self.model.learn(left, loop, log_interval=sys.maxsize, reset_num_timesteps=self.job.resumed is None)
            loop.close_books()
        except Stopped:
            state = "interrupted"
            loop.save()
        return self._finish(loop, state)

    def _open(self, lanes: int, name: str) -> GymnasiumVecEnv:
        """So many environments, counted under `name`."""
        raw = self.make_envs(self.job.config.environment, lanes, self.writer.events)
        self.stack.callback(raw.close)
        return GymnasiumVecEnv(raw, metered=MeteredVectorEnv(raw, self.metrics, name), on_infra_error=self._report_infra_error)

    def _evaluate_policy(self) -> Evaluation:
        def greedy(observations: Any) -> Any:
            return self.model.predict(observations, deterministic=True)[0]

        return play(greedy, self.eval_envs, self.job.training.eval_episodes, self.eval_seed)

    def _evaluate_chance(self) -> Evaluation:
        policy = random_policy(self.envs.action_space, self.eval_envs.num_envs, self.eval_seed)
        return play(policy, self.eval_envs, self.job.training.eval_episodes, self.eval_seed)

    def _manifest(self) -> dict[str, Any]:
        return manifest(self.job.config, seed=self.job.seed, threads=self.threads, config_file=self.job.file)

    def _record_session(self, run: RunDirectory, resumed: checkpoint.Resumed) -> None:
        """Adds to the manifest who went on, from where; `max_steps` is the one thing that may have changed."""
        first, now = run.manifest(), self._manifest()
        session = {name: now[name] for name in ("created", "command", "git", "versions", "machine")}
        session |= {"step": resumed.step, "exact": resumed.exact, "max_steps": self.job.training.max_steps}
        changed = {name: now[name] for name in ("config", "config_sha256")}
        self.writer.write_manifest(first | changed | {"sessions": [*first.get("sessions", []), session]})

    def _restore(self, loop: TrainingLoop, run: RunDirectory) -> None:
        path = latest_checkpoint(run)
        state = checkpoint.read(path)
        resumed = checkpoint.restore(self.model, self.envs, state)
        loop.resume(Notes(**resumed.notes), resumed.step, path, lambda: checkpoint.restore_randomness(self.model, state))
        forget_after(run.metrics_file, resumed.step)
        self._record_session(run, resumed)
        self.writer.events.emit("training.resumed", step=resumed.step, exact=resumed.exact, checkpoint=str(path))
        self.display.say(f"Going on from step {resumed.step:,} ({path.name}).")
        if not resumed.exact:
            self.display.say(
                f"{self.job.config.environment.name} cannot save an episode under way (it has no `save` and `load`), so new ones begin; "
                "from here on the run is a good continuation, but not the very one it would have been."
            )

    def _report_infra_error(self, lane: int, error: object) -> None:
        self.writer.events.emit("training.infra_error", lane=lane, error=str(error))
        self.display.say(f"The sandbox of environment {lane} failed and was replaced; its step is left out: {error}")

    def _announce_stop(self) -> None:
        self.display.say(
            "Stopping after the update under way, then saving. Press Ctrl-C again to stop at once, back to the last checkpoint."
        )

    def _point_to_checkpoint(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """What a failure leaves behind is said, since it can be gone on from."""
        if error is not None and (saved := checkpoints_in(self.writer.run.checkpoints)):
            self.display.say(f"The run is saved up to {saved[-1].stem}. Go on with: agentenv train --resume {self.writer.run.path}")

    def _finish(self, loop: TrainingLoop, state: Literal["finished", "interrupted"]) -> RunResult:
        notes, run = loop.notes, self.writer.run
        assert loop.saved is not None
        result = RunResult(
            run=run.path,
            state=state,
            algorithm=self.job.training.algorithm,
            environment=self.job.config.environment.name,
            steps=int(self.model.num_timesteps),
            max_steps=self.job.training.max_steps,
            seconds=loop.seconds,
            episodes=self.envs.episodes,
            random_return=notes.random_return,
            first_return=notes.evaluations[0][1],
            final_return=notes.evaluations[-1][1],
            optimal_return=notes.optimal,
            fraction_of_optimal=notes.fraction(),
            infra_errors=self.envs.infra_errors,
            parameters=checkpoint.fingerprint(self.model),
            checkpoint=loop.saved,
        )
        curve.draw(
            run.curve_file,
            title=f"{result.algorithm} on {result.environment}",
            training=[(step, value) for step, value in notes.training],
            evaluations=[(step, value) for step, value, _ in notes.evaluations],
            chance=notes.random_return,
            optimal=notes.optimal,
        )
        lines = result.lines()
        self.writer.finish(state, result=result.to_dict(), message=lines[0])
        self.display.end(lines, result.to_dict())
        return result
