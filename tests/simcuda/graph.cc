/*
 * graph.cc - stream capture and graphs.
 *
 * A capturing stream turns work into nodes; a stream joins by waiting for an event recorded in the
 * capture. Calls that a capture forbids spoil it, as the real ones do. A launch runs nodes in the
 * order of their capture; a node follows its first predecessor on the same stream where it can, and
 * other predecessors are edges through records, so that the thread sanitizer sees the graph's own
 * dependencies only. The launching stream carries the first chain, streams of the graph's own the
 * others. Locks: `api`.
 */
#include "sim.h"

namespace sim
{
static List<Capture *> *captures;
static uint64_t capture_numbers;
static __thread int thread_mode
    __attribute__((tls_model("initial-exec"))); /* cudaStreamCaptureMode */

Graph::~Graph()
{
    for (Node &node : nodes)
        node.closure->drop();
}

struct Exec : Quiet {
    Graph *graph = nullptr;
    List<int> lane;         /* of each node */
    List<Stream *> streams; /* of the lanes; the first is the launching stream's place */
    Record *last = nullptr;
};

Capture *find_capture(uint64_t id)
{
    if (captures)
        for (Capture *capture : *captures)
            if (capture->id == id)
                return capture;
    return nullptr;
}

cudaError_t invalidate(Capture *capture, const char *call)
{
    note("%s while a stream is captured: the capture is lost", call);
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* A call is forbidden to a thread that captures, and to all while somebody captures in global mode;
 * both unless the thread's own mode is relaxed. */
cudaError_t forbidden_by_capture(const char *call)
{
    if (!captures || thread_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    for (Capture *capture : *captures) {
        bool own =
            capture->thread == thread_number() && capture->mode != cudaStreamCaptureModeRelaxed;
        bool global = capture->mode == cudaStreamCaptureModeGlobal &&
                      thread_mode == cudaStreamCaptureModeGlobal;
        if (own || global)
            return invalidate(capture, call);
    }
    return cudaSuccess;
}

static void forget(Capture *capture)
{
    for (Stream *stream : capture->streams) {
        stream->capture = nullptr;
        stream->tail.clear();
    }
    for (size_t i = 0; i < captures->size(); i++)
        if ((*captures)[i] == capture)
            captures->erase(captures->begin() + (ptrdiff_t)i--);
    delete capture;
}

/* Does everything that the joined streams did come before the origin's end? */
static bool joined(const Capture *capture)
{
    List<char> before(capture->graph->nodes.size(), 0);
    for (int node : capture->origin->tail)
        before[(size_t)node] = 1;
    for (int node = (int)before.size() - 1; node >= 0; node--)
        for (int earlier : capture->graph->nodes[(size_t)node].after)
            before[(size_t)earlier] |= before[(size_t)node];
    for (char one : before)
        if (!one)
            return false;
    return true;
}

static Graph *copy_graph(const Graph *graph)
{
    Graph *made = new Graph();
    for (const Node &node : graph->nodes)
        made->nodes.push_back(Node{node.closure->hold(), node.after, node.stamp});
    return made;
}

/* A node goes on in the lane of a predecessor that nobody else has gone on from. */
static void choose_lanes(Exec *exec)
{
    size_t count = exec->graph->nodes.size(), lanes = 0;
    List<char> continued(count, 0);
    exec->lane.assign(count, -1);
    for (size_t i = 0; i < count; i++) {
        for (int earlier : exec->graph->nodes[i].after)
            if (!continued[(size_t)earlier] && exec->lane[i] < 0) {
                continued[(size_t)earlier] = 1;
                exec->lane[i] = exec->lane[(size_t)earlier];
            }
        if (exec->lane[i] < 0)
            exec->lane[i] = (int)lanes++;
    }
    exec->streams.assign(lanes, nullptr);
}

static void launch_nodes(Exec *exec, Stream *stream)
{
    List<Record *> done(exec->graph->nodes.size(), nullptr);
    Record *begin = record(stream);
    exec->streams[0] = stream;
    for (size_t lane = 1; lane < exec->streams.size(); lane++)
        wait_in_stream(exec->streams[lane], begin);
    begin->drop();
    for (size_t i = 0; i < done.size(); i++) {
        const Node &node = exec->graph->nodes[i];
        Stream *lane = exec->streams[(size_t)exec->lane[i]];
        for (int earlier : node.after)
            if (exec->lane[(size_t)earlier] != exec->lane[i])
                wait_in_stream(lane, done[(size_t)earlier]);
        push(lane, node.closure->hold(), false);
        if (node.stamp)
            stamp_event(node.stamp, lane);
        if (exec->streams.size() > 1)
            done[i] = record(lane);
    }
    for (Record *one : done)
        if (one) {
            wait_in_stream(stream, one);
            one->drop();
        }
}

static bool same_shape(const Graph *a, const Graph *b)
{
    if (a->nodes.size() != b->nodes.size())
        return false;
    for (size_t i = 0; i < a->nodes.size(); i++)
        if (strcmp(a->nodes[i].closure->name, b->nodes[i].closure->name) ||
            a->nodes[i].after != b->nodes[i].after)
            return false;
    return true;
}
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    CUSIM_ENTER("cudaThreadExchangeStreamCaptureMode");
    int old = thread_mode;
    thread_mode = *mode;
    *mode = (enum cudaStreamCaptureMode)old;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    CUSIM_ENTER("cudaStreamBeginCapture");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    if (stream->legacy)
        return result(cudaErrorStreamCaptureUnsupported);
    Guard guard(api);
    if (stream->capture)
        return result(cudaErrorIllegalState);
    if (!captures)
        captures = new (quiet_alloc(sizeof *captures)) List<Capture *>();
    Capture *capture = new Capture();
    capture->id = ++capture_numbers;
    capture->graph = new Graph();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = thread_number();
    capture->streams.push_back(stream);
    captures->push_back(capture);
    stream->capture = capture;
    stream->tail.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    CUSIM_ENTER("cudaStreamEndCapture");
    Stream *stream = find_stream(handle);
    if (!stream || !out)
        return result(cudaErrorInvalidResourceHandle);
    *out = nullptr;
    Guard guard(api);
    Capture *capture = stream->capture;
    if (!capture)
        return result(cudaErrorIllegalState);
    if (capture->origin != stream)
        return result(cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != thread_number())
        return result(cudaErrorStreamCaptureWrongThread);
    cudaError_t error = cudaSuccess;
    if (capture->invalid)
        error = cudaErrorStreamCaptureInvalidated;
    else if (!joined(capture))
        error = cudaErrorStreamCaptureUnjoined;
    if (error)
        delete capture->graph;
    else
        *out = (cudaGraph_t)capture->graph;
    forget(capture);
    if (error == cudaErrorStreamCaptureUnjoined)
        note("capture ends, but not all of its work comes before the end of its first stream");
    return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    CUSIM_ENTER("cudaStreamIsCapturing");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    CUSIM_ENTER("cudaGraphGetNodes");
    Graph *graph = (Graph *)handle;
    if (!graph || !count)
        return result(cudaErrorInvalidValue);
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < graph->nodes.size() ? (cudaGraphNode_t)&graph->nodes[i] : nullptr;
    if (!nodes || *count > graph->nodes.size())
        *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    CUSIM_ENTER("cudaGraphDestroy");
    Guard guard(api);
    delete (Graph *)handle;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long flags)
{
    CUSIM_ENTER("cudaGraphInstantiate");
    Graph *graph = (Graph *)handle;
    if (!out || !graph || (flags & ~3ull))
        return result(cudaErrorInvalidValue);
    Exec *exec = new Exec();
    {
        Guard guard(api);
        exec->graph = copy_graph(graph);
        choose_lanes(exec);
    }
    for (size_t i = 1; i < exec->streams.size(); i++)
        exec->streams[i] = new_stream(current_device(), cudaStreamNonBlocking, 0);
    *out = (cudaGraphExec_t)exec;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    CUSIM_ENTER("cudaGraphUpload");
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph_handle,
                                cudaGraphExecUpdateResultInfo *info)
{
    CUSIM_ENTER("cudaGraphExecUpdate");
    Exec *exec = (Exec *)handle;
    Graph *graph = (Graph *)graph_handle;
    Guard guard(api);
    bool same = same_shape(exec->graph, graph);
    if (info) {
        memset(info, 0, sizeof *info);
        info->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    }
    if (!same)
        return result(cudaErrorGraphExecUpdateFailure);
    delete exec->graph;
    exec->graph = copy_graph(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    CUSIM_ENTER("cudaGraphLaunch");
    Exec *exec = (Exec *)handle;
    Stream *stream = find_stream(stream_handle);
    if (!exec || !stream)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    if (stream->capture)
        return result(invalidate(stream->capture, "cudaGraphLaunch"));
    if (exec->last) {
        wait_in_stream(stream, exec->last);
        exec->last->drop();
    }
    enqueue(stream, new Closure(
                        "cudaGraphLaunch", [](void *) {}, nullptr, nullptr));
    if (!exec->graph->nodes.empty())
        launch_nodes(exec, stream);
    exec->last = record(stream);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    CUSIM_ENTER("cudaGraphExecDestroy");
    Exec *exec = (Exec *)handle;
    if (!exec)
        return result(cudaErrorInvalidValue);
    Guard guard(api);
    for (size_t i = 1; i < exec->streams.size(); i++)
        end_stream(exec->streams[i]);
    if (exec->last)
        exec->last->drop();
    delete exec->graph;
    delete exec;
    return cudaSuccess;
}
}
