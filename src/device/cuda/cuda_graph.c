/* cuda_graph.c - graphs: work of streams that is captured once and launched many times.
 *
 * Only the capturing thread's calls are checked by CUDA meanwhile: loader threads go on copying on
 * streams of their own. The rank's thread only. */
#include "ddp/memory.h"
#include "device/cuda/cuda_impl.h"

typedef struct cuda_graph {
    ddp_graph base;
    cudaGraphExec_t exec;
} cuda_graph;

ddp_status ddpi_cuda_graph_begin(ddp_stream *stream)
{
    return DDPI_CUDA_CHECK(
        cudaStreamBeginCapture(ddpi_cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
}

/* The captured work in a form that can be launched. */
static ddp_status instantiate(ddp_device *device, cudaGraph_t captured, ddp_graph **graph_out)
{
    cuda_graph *graph;
    DDP_TRY(DDP_ALLOC(graph, 1));
    graph->base.device = device;
    const ddp_status st = DDPI_CUDA_CHECK(cudaGraphInstantiate(&graph->exec, captured, 0));
    if (st != DDP_OK) {
        ddp_free(graph);
        return st;
    }
    *graph_out = &graph->base;
    return DDP_OK;
}

ddp_status ddpi_cuda_graph_end(ddp_stream *stream, ddp_graph **graph_out)
{
    cudaGraph_t captured = NULL;
    ddp_status st = DDPI_CUDA_CHECK(cudaStreamEndCapture(ddpi_cuda_stream(stream), &captured));
    if (st != DDP_OK) {
        (void)cudaGetLastError(); /* the stream is as before, and can go on without a graph */
        return st;
    }
    st = instantiate(stream->device, captured, graph_out);
    (void)cudaGraphDestroy(captured);
    return st;
}

ddp_status ddpi_cuda_graph_launch(ddp_graph *graph, ddp_stream *stream)
{
    return DDPI_CUDA_CHECK(cudaGraphLaunch(((cuda_graph *)graph)->exec, ddpi_cuda_stream(stream)));
}

void ddpi_cuda_graph_destroy(ddp_graph *graph)
{
    if (ddpi_cuda_enter(graph->device) == DDP_OK)
        (void)cudaGraphExecDestroy(((cuda_graph *)graph)->exec);
    ddp_free(graph);
}
