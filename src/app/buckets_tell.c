/* buckets_tell.c - what --bucket-cap-mb auto has found: on the console, in the run record, and as
 * the run directory's layers.json, which ddp_bench predict reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/buckets.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

enum { LIST_BYTES = 200 };

static const double MIB = 1024.0 * 1024.0;

bool ddpi_cut_same(const ddpi_cut *a, const ddpi_cut *b)
{
    bool same = a->count == b->count;

    for (int i = 0; same && i < a->count; i++)
        same = a->ends[i] == b->ends[i];
    return same;
}

static double bucket_bytes(const ddpi_buckets *b, const ddpi_cut *cut, int bucket)
{
    double bytes = 0;

    for (int i = bucket > 0 ? cut->ends[bucket - 1] : 0; i < cut->ends[bucket]; i++)
        bytes += b->bytes[i];
    return bytes;
}

static const char *list_sizes(const ddpi_buckets *b, const ddpi_cut *cut, char text[LIST_BYTES])
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < cut->count; i++) {
        if (used > LIST_BYTES - 24) {
            snprintf(text + used, LIST_BYTES - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%.3g", i > 0 ? ", " : "",
                                 bucket_bytes(b, cut, i) / MIB);
    }
    return text;
}

void ddpi_run_print_buckets(const ddpi_run *run)
{
    const ddpi_buckets *b = run->buckets;
    const ddp_reducer_opts *opts = &run->config.reducer;
    char text[LIST_BYTES];

    if (b == NULL)
        return;
    const ddpi_cut *taken = b->better ? &b->best : &b->size;
    ddp_log_print("gradient buckets: %d, of %s MiB", taken->count, list_sizes(b, taken, text));
    if (run->world == 1) {
        ddp_log_print("  by size: one rank has nobody to talk to");
        return;
    }
    ddp_log_print("  by size (%g, then %g MiB): %.2f ms of communication exposed in a step, "
                  "predicted %.2f; %.2f ms a step without update",
                  opts->first_bucket_mb, opts->bucket_cap_mb, b->size.exposed * 1e3,
                  b->size.predicted * 1e3, b->size.seconds * 1e3);
    if (ddpi_cut_same(&b->size, &b->best)) {
        ddp_log_print("  no other cut is predicted to expose less");
        return;
    }
    ddp_log_print("  chosen (%d buckets): %.2f ms exposed, predicted %.2f; %.2f ms a step%s",
                  b->best.count, b->best.exposed * 1e3, b->best.predicted * 1e3,
                  b->best.seconds * 1e3, b->better ? "" : ": not better, so by size");
}

static ddp_status cut_record(const ddpi_buckets *b, const ddpi_cut *cut, ddp_json **record_out)
{
    ddp_json *record, *sizes;

    DDP_TRY(ddp_json_object(&record));
    ddp_json_set_number(record, "predicted_exposed_ms", cut->predicted * 1e3);
    ddp_json_set_number(record, "exposed_ms", cut->exposed * 1e3);
    ddp_json_set_number(record, "step_ms", cut->seconds * 1e3);
    const ddp_status st = ddp_json_array(&sizes);
    if (st != DDP_OK) {
        ddp_json_destroy(record);
        return st;
    }
    for (int i = 0; i < cut->count; i++)
        ddp_json_append_number(sizes, bucket_bytes(b, cut, i));
    ddp_json_set(record, "bytes", sizes);
    *record_out = record;
    return DDP_OK;
}

ddp_status ddpi_run_add_buckets(const ddpi_run *run, ddp_json *record)
{
    const ddpi_buckets *b = run->buckets;
    ddp_json *cut;

    if (b == NULL || run->world == 1)
        return DDP_OK;
    DDP_TRY(cut_record(b, &b->size, &cut));
    ddp_json_set(record, "buckets_by_size", cut);
    DDP_TRY(cut_record(b, &b->best, &cut));
    ddp_json_set(record, "buckets_chosen", cut);
    ddp_json_set_bool(record, "buckets_better", b->better);
    return DDP_OK;
}

/* ---- what training came to ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void ddpi_run_watch_buckets(const ddpi_run *run, const ddp_step_stats *stats)
{
    ddpi_buckets *b = run->buckets;

    if (b == NULL || run->world == 1 || b->watched == DDPI_BUCKETS_WATCHED)
        return;
    b->steps[b->watched++] = (double)stats->exposed_ns * 1e-6;
    if (b->watched < DDPI_BUCKETS_WATCHED)
        return;
    qsort(b->steps, DDPI_BUCKETS_WATCHED, sizeof b->steps[0], ascending);
    ddp_log_progress_end();
    ddp_log_print("gradient buckets: %.2f ms of communication exposed in a step (median of the "
                  "first %d), predicted %.2f; by size %.2f when tried",
                  b->steps[DDPI_BUCKETS_WATCHED / 2], DDPI_BUCKETS_WATCHED,
                  (b->better ? b->best : b->size).predicted * 1e3, b->size.exposed * 1e3);
}

/* ---- layers.json ---- */

static ddp_status add_layers(const ddpi_run *run, ddp_json *record)
{
    const ddp_param_table *table = ddp_model_params(run->net.model);
    const ddpi_buckets *b = run->buckets;
    ddp_json *layers, *layer;

    DDP_TRY(ddp_json_array(&layers));
    ddp_json_set(record, "layers", layers);
    for (int i = 0; i < b->params; i++) {
        DDP_TRY(ddp_json_object(&layer));
        ddp_json_set_string(layer, "name", ddp_param_table_at(table, i)->name);
        ddp_json_set_number(layer, "bytes", b->bytes[i]);
        ddp_json_set_number(layer, "ready", b->ready[i]);
        ddp_json_append(layers, layer);
    }
    return DDP_OK;
}

static ddp_status fill_layers(const ddpi_run *run, ddp_json *record)
{
    const ddpi_buckets *b = run->buckets;
    int64_t first;
    ddp_json *curve;

    ddp_json_set_string(record, "model", ddp_model_name(run->net.model));
    ddp_json_set_int(record, "samples", ddp_sampler_shard(&run->data.sampler, 0, 0, &first));
    ddp_json_set_number(record, "forward", b->forward);
    ddp_json_set_number(record, "backward", b->backward);
    ddp_json_set_number(record, "update_per_byte", b->update_per_byte);
    DDP_TRY(add_layers(run, record));
    if (b->curve.count == 0)
        return DDP_OK;
    DDP_TRY(ddp_json_object(&curve));
    ddp_json_set(record, "curve", curve);
    return ddp_cost_curve_write(&b->curve, curve);
}

ddp_status ddpi_run_write_layers(const ddpi_run *run)
{
    char path[PATH_MAX], *text = NULL;
    ddp_json *record;

    if (run->buckets == NULL)
        return DDP_OK;
    DDP_TRY(ddpi_run_path(run, "layers.json", path));
    DDP_TRY(ddp_json_object(&record));
    ddp_status st = fill_layers(run, record);
    if (st == DDP_OK)
        st = ddp_json_text(record, 1, &text);
    ddp_json_destroy(record);
    if (st == DDP_OK)
        st = ddp_fs_write_atomic(path, text, strlen(text));
    ddp_free(text);
    return st;
}
