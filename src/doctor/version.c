/* version.c - which build of the library this is. The version alone does not tell two builds
 * apart; the linker's hash of the contents does. */
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "doctor/doctor.h"

typedef struct search {
    char *text;
    size_t bytes;
} search;

static void take_note(const ElfW(Nhdr) * note, search *s)
{
    const unsigned char *hash = (const unsigned char *)(note + 1) + (note->n_namesz + 3) / 4 * 4;

    for (unsigned i = 0; i < note->n_descsz && i < 8; i++) {
        const size_t used = strlen(s->text);
        snprintf(s->text + used, s->bytes - used, "%02x", hash[i]);
    }
}

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= begin && address < begin + part->p_memsz)
            return true;
    }
    return false;
}

/* Of the object that this function is in. */
static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    if (!holds(info, (uintptr_t)&look))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const char *at = (const char *)(info->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz;
        while (part->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const void *)at;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4)
                take_note(note, arg);
            at += sizeof *note + (note->n_namesz + 3) / 4 * 4 + (note->n_descsz + 3) / 4 * 4;
        }
    }
    return 1;
}

void ddpi_doctor_build(char *text, size_t bytes)
{
    search s = {.text = text, .bytes = bytes};

    snprintf(text, bytes, "%s ", DDP_VERSION);
    (void)dl_iterate_phdr(look, &s);
}
