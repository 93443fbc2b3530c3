"""onnxruntime as its users have it, for `kiln bench model`: measured by itself.

peer.py MODEL reads requests, an object of JSON a line, and writes an answer for each:
 {"name": N, "batches": [[[id, ...], ...], ...]}  keeps batches of texts, padded
 {"time": N, "callers": C, "threads": T}          seconds that computing them took
 {"embed": [id, ...]}                             an embedding
peer.py MODEL each reads ids, a list a line, and writes an embedding for each.
"""
import itertools
import json
import sys
import threading
import time

import numpy
import onnxruntime

model = sys.argv[1]
sessions = {}
kept = {}


def session(threads):
    if threads not in sessions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        sessions[threads] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return sessions[threads]


def padded(texts):
    shape = (len(texts), max(map(len, texts)))
    ids, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros(shape, numpy.int64)}


def embed(session, batch):
    rows = session.run([session.get_outputs()[0].name], batch)[0]
    mask = batch["attention_mask"][:, :, None].astype(numpy.float32)
    out = (rows * mask).sum(1) / mask.sum(1)
    return out / numpy.linalg.norm(out, axis=1, keepdims=True)


def timed(batches, callers, threads):
    use, place = session(threads), itertools.count()

    def work():
        for at in iter(lambda: next(place), None):
            if at >= len(batches):
                return
            embed(use, batches[at])

    others = [threading.Thread(target=work) for _ in range(callers - 1)]
    began = time.perf_counter()
    for other in others:
        other.start()
    work()
    for other in others:
        other.join()
    took = time.perf_counter() - began
    if threads > 1:
        time.sleep(0.1)  # its threads wait awake for a while: not beside the other side
    return took


def answer(request):
    if "batches" in request:
        kept[request["name"]] = [padded(texts) for texts in request["batches"]]
        return {}
    if "embed" in request:
        return {"embedding": embed(session(1), padded([request["embed"]]))[0].tolist()}
    return {"seconds": timed(kept[request["time"]], request["callers"], request["threads"])}


def say(line):
    print(json.dumps(line), flush=True)


if sys.argv[2:] == ["each"]:
    for line in sys.stdin:
        say(embed(session(1), padded([json.loads(line)]))[0].tolist())
else:
    versions = "onnxruntime %s, numpy %s, Python %d.%d.%d" % (onnxruntime.__version__, numpy.__version__, *sys.version_info[:3])
    say({"versions": versions})
    for line in sys.stdin:
        try:
            say(answer(json.loads(line)))
        except Exception as error:  # it becomes an error of the request
            say({"error": "%s: %s" % (type(error).__name__, error)})
