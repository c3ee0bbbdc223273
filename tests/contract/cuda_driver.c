/* A stand-in for libcuda.so.1: memory is the host's, streams are in order, and the one kernel it runs
   is `scale(float *y, const float *x, float k)`, by hand. It proves that calls are well formed and come
   in a right order; it says nothing about a card. FAKE_CUDA_LOG: where launches are written.

   Without a file `facts` beside the library there is one device. With it (the format of the stand-in
   for NVML, `nvidia_ml.c`, which may read the same file) there are its boards, of which a process sees
   those of CUDA_VISIBLE_DEVICES, and injected errors:
       boards 2, 0.uuid GPU-a, 0.total_mib 1024, 0.context_mib 300
       0.fail cuStreamSynchronize 214   the error of a call of that function on board 0
       0.hang cuStreamSynchronize       such a call does not return, until the fact is gone
       shared /dev/shm/name             each process keeps its memory in use in /dev/shm/name.PID.TIME,
                                        locked while it lives: both libraries read them */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
enum { MEMORY_BYTES = 1 << 28, THREADS_MAX = 1024, BOARDS_MAX = 16 };
#define MIB ((size_t)1 << 20)
typedef struct { size_t used, own; int board, retained, lost; } Device; /* own: of this process */
typedef struct { size_t size; Device *device; } Block;
static Device devices[BOARDS_MAX];
static _Thread_local Device *current = devices;
enum { PINNED_MAX = 4096 };
static size_t pinned;
static struct { char *page; size_t size; } pins[PINNED_MAX];
static int usage_file = -1;

static Block *header(uint64_t p) { return (Block *)p - 1; }

/* --- facts */

static int fact(const char *key, char *value) {
    char line[256], path[4096];
    size_t length = strlen(key);
    Dl_info self;
    int found = 0;
    *value = 0;
    dladdr((void *)fact, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    strcpy(strrchr(path, '/'), "/facts");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            strcpy(value, line + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}
static int of(int board, const char *key, char *value) {
    char name[64];
    snprintf(name, sizeof name, "%d.%s", board, key);
    return fact(name, value);
}
static size_t number(int board, const char *key, size_t otherwise) {
    char value[256];
    return of(board, key, value) ? strtoull(value, NULL, 10) : otherwise;
}
static int has_facts(void) { char value[256]; return fact("boards", value); }

/* The injected error of a call on a board; does not return while it hangs. */
static int injected(const char *function, int board) {
    char value[256], name[128];
    int code;
    while (of(board, "hang", value) && !strcmp(value, function)) usleep(10000);
    if (of(board, "fail", value) && sscanf(value, "%127s %d", name, &code) == 2 && !strcmp(name, function)) return code;
    return OK;
}
#define INJECTED(board) do { int code_ = injected(__func__, board); if (code_) return code_; } while (0)

/* The board of the n-th visible device; -1 = there is none. */
static int visible(int n) {
    char uuid[256];
    const char *shown = getenv("CUDA_VISIBLE_DEVICES");
    if (!has_facts()) return n == 0 ? 0 : -1;
    if (!shown || !*shown) return of(n, "uuid", uuid) ? n : -1;
    while (n-- && (shown = strchr(shown, ','))) shown++;
    if (!shown) return -1;
    for (int board = 0; board < BOARDS_MAX && of(board, "uuid", uuid); board++)
        if (!strncmp(shown, uuid, strlen(uuid)) && strchr(",", shown[strlen(uuid)])) return board;
    return -1;
}

/* --- memory in use, of all processes */

static void publish(void) {
    char path[256], name[512], text[2048], uuid[256];
    int length = 0;
    if (!fact("shared", path)) return;
    if (usage_file < 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(name, sizeof name, "%s.%d.%ld", path, getpid(), now.tv_nsec);
        usage_file = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (usage_file < 0 || flock(usage_file, LOCK_EX)) abort();
    }
    for (int board = 0; board < BOARDS_MAX; board++)
        if (of(board, "uuid", uuid) && devices[board].own)
            length += snprintf(text + length, sizeof text - length, "%s %zu\n", uuid, devices[board].own);
    if (ftruncate(usage_file, 0) || pwrite(usage_file, text, length, 0) != length) abort();
}
static size_t used_by_others(int board) {
    char path[256], pattern[512], uuid[256], line[512];
    size_t sum = 0, bytes;
    glob_t found;
    if (!fact("shared", path) || !of(board, "uuid", uuid)) return 0;
    snprintf(pattern, sizeof pattern, "%s.*", path);
    if (glob(pattern, 0, NULL, &found)) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int file = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        struct stat own, other;
        if (file < 0) continue;
        if (usage_file >= 0 && !fstat(usage_file, &own) && !fstat(file, &other) && own.st_ino == other.st_ino) {
            close(file);
            continue;
        }
        if (flock(file, LOCK_SH | LOCK_NB)) {
            FILE *text = fdopen(file, "r");
            while (fgets(line, sizeof line, text)) {
                char *space = strrchr(line, ' ');
                *space = 0;
                if (!strcmp(line, uuid) && sscanf(space + 1, "%zu", &bytes) == 1) sum += bytes;
            }
            fclose(text);
        } else close(file); /* its process has ended */
    }
    globfree(&found);
    return sum;
}
static size_t total(int board) { return has_facts() ? number(board, "total_mib", 1024) * MIB : MEMORY_BYTES; }
static int take(Device *device, size_t size) {
    if (device->own + used_by_others(device->board) + size > total(device->board)) return OUT_OF_MEMORY;
    device->own += size;
    publish();
    return OK;
}

/* --- the driver's interface */

int cuInit(unsigned flags) {
    if (getenv("FAKE_CUDA_NO_DEVICE")) return NO_DEVICE;
    for (int board = 0; board < BOARDS_MAX; board++) devices[board].board = board;
    int board = visible(0);
    if (board < 0) return NO_DEVICE;
    INJECTED(board);
    return OK;
}
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuDeviceGet(int *device, int n) {
    *device = visible(n);
    if (*device < 0) return INVALID_VALUE;
    INJECTED(*device);
    return OK;
}
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Stand-in", size); return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    INJECTED(device);
    Device *one = &devices[device];
    if (!one->retained && take(one, number(device, "context_mib", 0) * MIB)) return OUT_OF_MEMORY;
    one->retained = 1;
    *context = one;
    return OK;
}
int cuCtxSetCurrent(void *context) { current = context; return OK; }
int cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    INJECTED(current->board);
    *total_bytes = total(current->board);
    *free_bytes = *total_bytes - current->own - used_by_others(current->board);
    return OK;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = current; return OK; }
int cuStreamSynchronize(void *stream) { INJECTED(current->board); return current->lost ? ILLEGAL_ADDRESS : OK; }
int cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return OK; }
int cuEventDestroy(void *event) { free(event); return OK; }
int cuEventRecord(void *event, void *stream) { return OK; }
int cuEventSynchronize(void *event) { INJECTED(current->board); return OK; }
int cuMemAlloc(uint64_t *address, size_t size) {
    INJECTED(current->board);
    int code = take(current, size);
    if (code) return code;
    Block *block = malloc(size + sizeof *block);
    *block = (Block){size, current};
    memset(block + 1, 0xAA, size);  /* what the one before left */
    *address = (uint64_t)(block + 1);
    return OK;
}
int cuMemFree(uint64_t address) {
    Block *block = header(address);
    for (size_t i = 0; i < block->size; i++)
        if (((char *)address)[i]) return INVALID_VALUE;  /* it was to be zeroed */
    block->device->own -= block->size;
    publish();
    free(block);
    return OK;
}
int cuMemHostAlloc(void **page, size_t size, unsigned flags) {
    INJECTED(current->board);
    for (int i = 0; i < PINNED_MAX; i++)
        if (!pins[i].page) {
            pins[i].page = *page = malloc(size);
            pins[i].size = size;
            pinned += size;
            return OK;
        }
    return OUT_OF_MEMORY;
}
static int pin_of(const void *address) {
    for (int i = 0; i < PINNED_MAX; i++)
        if (pins[i].page && (char *)address >= pins[i].page && (char *)address < pins[i].page + pins[i].size) return i;
    return -1;
}
int cuMemFreeHost(void *page) {
    int i = pin_of(page);
    if (i < 0 || pins[i].page != page) return INVALID_VALUE;
    pinned -= pins[i].size;
    free(pins[i].page);
    pins[i].page = NULL;
    return OK;
}
size_t standin_pinned(void) { return pinned; }
/* FAKE_CUDA_COPIES: one line per copy, "up 64", or "up 64 pageable" from memory that is not pinned as a whole. */
static int log_copy(const char *what, const void *host, size_t count) {
    if (!getenv("FAKE_CUDA_COPIES")) return OK;
    FILE *log = fopen(getenv("FAKE_CUDA_COPIES"), "a");
    int whole = pin_of(host) >= 0 && pin_of(host) == pin_of((const char *)host + count - 1);
    fprintf(log, "%s %zu%s\n", what, count, whole ? "" : " pageable");
    return fclose(log);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) { INJECTED(current->board); memset((void *)to, value, count); return OK; }
int cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t count, void *stream) { INJECTED(current->board); memcpy((void *)to, from, count); return log_copy("up", from, count); }
int cuMemcpyDtoHAsync(void *to, uint64_t from, size_t count, void *stream) { INJECTED(current->board); memcpy(to, (void *)from, count); return log_copy("down", to, count); }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return memcmp(image, "\177ELF", 4) ? 200 : OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return OK; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return attribute == 8 && value <= 100000 ? OK : INVALID_VALUE; }
int cuLaunchKernel(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    INJECTED(current->board);
    FILE *log = getenv("FAKE_CUDA_LOG") ? fopen(getenv("FAKE_CUDA_LOG"), "a") : NULL;
    if (log) {
        fprintf(log, "%s %u,%u,%u %u,%u,%u %u", name, gx, gy, gz, bx, by, bz, shared);
        if (!strcmp(name, "group_sum")) fprintf(log, " %u", *(unsigned *)parameters[2]);
        fprintf(log, "\n");
        fclose(log);
    }
    if (extra || bx * by * bz > THREADS_MAX) return INVALID_VALUE;
    if (!strcmp(name, "wild")) current->lost = 1;
    if (!strcmp(name, "scale")) {
        float *y = *(float **)parameters[0], *x = *(float **)parameters[1], k = *(float *)parameters[2];
        for (unsigned i = 0; i < gx * bx; i++) y[i] = k * x[i];
    }
    return OK;
}
/* NVRTC asks for tables of NVIDIA's own tools, and does without. */
int cuGetExportTable(const void **table, const void *id) { *table = NULL; return NOT_FOUND; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    Dl_info self;
    dladdr((void *)cuInit, &self);
    *function = dlsym(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), name);
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
