/* bench_plot.c - pictures: a script for gnuplot that carries its data, and gnuplot run on it.
 *
 * The script names its picture without a folder, and gnuplot runs in --out, so that both may be
 * moved and drawn again. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "tools/bench/bench_util.h"

static void write_series(FILE *file, const ddpi_bench_series *series, int number)
{
    fprintf(file, "$data%d << EOD\n", number);
    for (int i = 0; i < series->rows * series->columns; i++) {
        bool last = (i + 1) % series->columns == 0;
        if (isfinite(series->values[i]))
            fprintf(file, "%.9g%s", series->values[i], last ? "\n" : " ");
        else
            fprintf(file, "NaN%s", last ? "\n" : " ");
    }
    fprintf(file, "EOD\n");
}

/* What stands in a picture may come from a file, and gnuplot runs commands that it finds between
 * backquotes. Between single quotes it finds none, and knows no other escape than a second one. */
static void write_text(FILE *file, const char *before, const char *text)
{
    fprintf(file, "%s'", before);
    for (; *text != 0; text++) {
        if (*text == '\'')
            fputc('\'', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
    fputc('\'', file);
}

static void write_script(FILE *file, const ddpi_bench_plot *plot)
{
    fprintf(file, "# gnuplot %s.gp makes %s.svg\n", plot->name, plot->name);
    fprintf(file,
            "set terminal svg size 900,560 font 'sans-serif,13' background rgb 'white' noenhanced\n"
            "set output '%s.svg'\n",
            plot->name);
    write_text(file, "set title ", plot->title);
    write_text(file, "\nset xlabel ", plot->x);
    write_text(file, "\nset ylabel ", plot->y);
    fprintf(file, "\nset grid\nset key outside right top vertical\n%s",
            plot->setup != NULL ? plot->setup : "");
    for (int i = 0; i < plot->series_count; i++)
        write_series(file, &plot->series[i], i);
    for (int i = 0; i < plot->series_count; i++) {
        const ddpi_bench_series *series = &plot->series[i];
        fprintf(file, "%s $data%d %s", i == 0 ? "plot" : ", \\\n    ", i, series->style);
        if (series->title != NULL)
            write_text(file, " title ", series->title);
        else
            fprintf(file, " notitle");
    }
    fprintf(file, "\n");
}

/* Starts gnuplot in the folder; 0 or what kept it from starting. */
static int start(const ddpi_bench_out *out, const char *script, pid_t *pid_out)
{
    char program[PATH_MAX], file[NAME_MAX];
    char *argv[] = {program, file, NULL};
    posix_spawn_file_actions_t actions;

    snprintf(program, sizeof program, "%s", out->gnuplot);
    snprintf(file, sizeof file, "%s.gp", script);
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0)
        return code;
    code = posix_spawn_file_actions_addchdir_np(&actions, out->dir);
    if (code == 0)
        code = posix_spawnp(pid_out, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

static ddp_status run_gnuplot(ddpi_bench_out *out, const char *name)
{
    pid_t pid;
    int state, code = start(out, name, &pid);

    if (code == ENOENT || code == EACCES) {
        ddpi_bench_say(out, "No picture: %s is not here. Elsewhere, gnuplot %s.gp draws it.\n",
                       out->gnuplot, name);
        return DDP_OK;
    }
    if (code != 0)
        return DDP_FAIL(DDP_ERR_IO, "start %s: %s", out->gnuplot, strerror(code));
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return DDP_FAIL(DDP_ERR_IO, "wait for %s: %s", out->gnuplot, strerror(errno));
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        return DDP_FAIL(DDP_ERR_IO, "%s does not draw %s/%s.gp", out->gnuplot, out->dir, name);
    return DDP_OK;
}

/* gnuplot ends well on a full disk, too. What draws nothing was told to (--gnuplot true). */
static ddp_status check_picture(const char *path)
{
    static const char last[] = "</svg>";
    char end[32] = "";
    FILE *file = fopen(path, "r");

    if (file == NULL && errno == ENOENT)
        return DDP_OK;
    if (file == NULL)
        return DDP_FAIL(DDP_ERR_IO, "read %s: %s", path, strerror(errno));
    if (fseek(file, -(long)(sizeof end - 1), SEEK_END) == 0)
        (void)!fread(end, 1, sizeof end - 1, file);
    fclose(file);
    if (strstr(end, last) != NULL)
        return DDP_OK;
    (void)unlink(path);
    return DDP_FAIL(DDP_ERR_IO, "write %s: the picture is not whole; a full disk?", path);
}

ddp_status ddpi_bench_draw(ddpi_bench_out *out, const ddpi_bench_plot *plot)
{
    char path[PATH_MAX], picture[PATH_MAX], name[NAME_MAX];

    if (out->dir == NULL)
        return DDP_OK;
    if (out->text != NULL) /* first, where there is little room; closing it tells of errors */
        (void)fflush(out->text);
    /* An earlier picture would not be of these numbers. */
    snprintf(name, sizeof name, "%s.svg", plot->name);
    DDP_TRY(ddp_fs_join(picture, sizeof picture, out->dir, name));
    if (unlink(picture) != 0 && errno != ENOENT)
        return DDP_FAIL(DDP_ERR_IO, "remove %s: %s", picture, strerror(errno));
    snprintf(name, sizeof name, "%s.gp", plot->name);
    DDP_TRY(ddp_fs_join(path, sizeof path, out->dir, name));
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return DDP_FAIL(DDP_ERR_IO, "write %s: %s", path, strerror(errno));
    write_script(file, plot);
    int bad = ferror(file);
    if ((fclose(file) != 0) | bad)
        return DDP_FAIL(DDP_ERR_IO, "write %s: %s", path, strerror(errno));
    DDP_TRY(run_gnuplot(out, plot->name));
    return check_picture(picture);
}
