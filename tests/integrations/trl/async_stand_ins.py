"""What stands in for a GPU box under TRL's AsyncGRPOTrainer, and nothing else: the rest is the trainer's own code.

* the FlashAttention-3 kernel of tree packing (from the hub, CUDA only): the same sum in plain torch;
* the name of the CUDA device, which is asked for to look up its speed;
* the vLLM server: `Engine` decodes with a second copy of the model and takes weights through TRL's
  `WeightTransferProtocol`; `CompletionsServer` answers TRL's own worker over HTTP as `vllm serve` does.
"""

import contextlib
import json
import math
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from transformers import AutoModelForCausalLM

SYMBOLS = "0123456789="
PAD, EOS = 0, 1


def varlen_attention(q, k, v, cu_q, cu_k, max_q, max_k, *, softmax_scale, causal, window_size):
    """`flash_attn_varlen_func` for float32 on a CPU: each segment's queries are the last rows of its keys."""
    assert causal and window_size == (-1, -1)
    repeat = q.shape[1] // k.shape[1]
    parts = []
    for i in range(len(cu_q) - 1):
        queries = q[cu_q[i] : cu_q[i + 1]].transpose(0, 1)
        keys, values = (x[cu_k[i] : cu_k[i + 1]].repeat_interleave(repeat, dim=1).transpose(0, 1) for x in (k, v))
        n, total = queries.shape[1], keys.shape[1]
        visible = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        scale = softmax_scale or 1 / math.sqrt(q.shape[-1])
        scores = (queries @ keys.transpose(1, 2) * scale).masked_fill(~visible, -math.inf)
        parts.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(parts)


class Kernel:
    flash_attn_varlen_func = staticmethod(varlen_attention)


class Engine:
    """TRL's weight transfer and the server behind it, in this process."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.sends = 0

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def resume(self):
        pass

    def destroy(self):
        pass

    def send_weights(self, iterator):
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in iterator:
                own[name].copy_(tensor)
        self.sends += 1

    @torch.no_grad()
    def decode(self, prompts, max_tokens, generator):
        """Completions and their log-probs; ends at EOS."""
        rows = []
        for prompt in prompts:
            tokens, logprobs = list(prompt), []
            for _ in range(max_tokens):
                step = self.model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
                token = int(torch.multinomial(step.exp(), 1, generator=generator))
                tokens.append(token)
                logprobs.append(float(step[token]))
                if token == EOS:
                    break
            rows.append((tokens[len(prompt) :], logprobs))
        return rows


class OnDemandQueue(queue.Queue):
    """Decodes a group when somebody waits for it: no thread, so a run is the same each time."""

    def __init__(self, make_group):
        super().__init__()
        self._make_group = make_group

    def get(self, block=True, timeout=None):
        if block and self.empty():
            for sample in self._make_group():
                self.put_nowait(sample)
        return super().get(block=False)


class InProcessWorker:
    """A `RolloutWorkerProtocol` that decodes digits to sort; reward: the share of places that are right."""

    def __init__(self, engine, *, group_size=4, digits=2, seed=0):
        self.engine, self.group_size, self.digits = engine, group_size, digits
        self.rollout_buffer, self.metrics_queue = OnDemandQueue(self.make_group), queue.Queue()
        self.version = self.generated = self.groups = 0
        self.started = self.stopped = False
        self.broken = None
        self._rng = np.random.default_rng(seed)
        self._torch_rng = torch.Generator().manual_seed(seed)

    def start(self):
        self.started = True

    def stop(self):
        self.stopped = True

    def update_model_version(self, model_version):
        self.version = model_version

    def check_health(self, stale_after_s):
        if self.broken:
            raise RuntimeError(self.broken)

    def make_group(self):
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        digits = self._rng.integers(0, 10, self.digits)
        prompt = [*(2 + digits), 12]
        answer = [*np.sort(2 + digits), EOS]
        decoded = self.engine.decode([prompt] * self.group_size, len(answer), self._torch_rng)
        rewards = np.array([np.mean([a == b for a, b in zip(answer, row[0], strict=False)]) for row in decoded])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        group, self.groups = self.groups, self.groups + 1
        self.generated += self.group_size
        self.metrics_queue.put_nowait({"rollout/inflight": 4.0})
        return [
            RolloutSample(
                prompt=[{"role": "user", "content": "".join(map(str, digits))}],
                completion=[{"role": "assistant", "content": str(row[0])}],
                input_ids=np.array([*prompt, *row[0]], np.int64),
                completion_mask=np.array([0] * len(prompt) + [1] * len(row[0]), np.int64),
                old_log_probs=np.array([0.0] * len(prompt) + row[1], np.float32),
                advantage=float(advantages[i]),
                model_version=self.version,
                group_id=group,
                metrics={"reward": float(rewards[i]), "reward_std": float(rewards.std()), "rewards/sort": rewards[i]},
            )
            for i, row in enumerate(decoded)
        ]


class CompletionsServer:
    """What `vllm serve` answers to `POST /v1/completions` with token ids asked for; counts the requests."""

    def __init__(self, engine):
        self.requests, lock = 0, threading.Lock()
        generator = torch.Generator().manual_seed(0)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):  # noqa: N805 - `self` is the server
                asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    self.requests += 1
                    ((tokens, logprobs),) = engine.decode([asked["prompt"]], asked["max_tokens"], generator)
                choice = {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
                body = json.dumps({"choices": [choice]}).encode()
                handler.send_response(200)
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the worker was stopped meanwhile
                    handler.wfile.write(body)

            def log_message(handler, *_):  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def digits_in_order(completion_ids, **_):
    """A reward that TRL's worker can send to its process: tokens that are not smaller than the one before."""
    return [float(np.mean(np.diff(ids) >= 0)) if len(ids) > 1 else 0.0 for ids in completion_ids]
