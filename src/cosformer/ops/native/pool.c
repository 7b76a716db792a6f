/* Threads and scratch memory.
 *
 * Threads come from the OpenMP runtime that torch has already loaded (one pool for the process: two would fight for the
 * cores); without one, and in the child of a fork, threads are created for the call. Tasks are taken from one counter, so a slow core gets fewer. */
#define _GNU_SOURCE
#include "cosformer.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* The versions of these names that every glibc has: those of 2.34, which a newer one would link, keep a wheel off older systems. */
#if defined(__GLIBC__) && defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif
#ifdef OLDEST
__asm__(".symver dlsym,dlsym@" OLDEST);
__asm__(".symver pthread_create,pthread_create@" OLDEST);
__asm__(".symver pthread_join,pthread_join@" OLDEST);
#endif

#define EXPORT __attribute__((visibility("default")))
enum { MOST_KEPT = 32 << 20 }; /* bytes of scratch that wait for the next call: heads of up to 256 channels on several threads */

typedef struct block {
    struct block *next;
    size_t bytes;
} block_t; /* sits in the 64 bytes before the memory handed out */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block_t *kept;
static size_t kept_bytes;

/* Blocks are kept because fresh memory costs a page fault every 4 KB. At most one per concurrent taker exists, and no more
 * than MOST_KEPT bytes of them wait: those of very large heads go back to the system at once. */
char *take_block(size_t bytes) {
    pthread_mutex_lock(&lock);
    block_t **link = &kept;
    while (*link && (*link)->bytes < bytes) link = &(*link)->next;
    block_t *found = *link;
    if (!found && kept) link = &kept, found = kept; /* too small: replaced by a larger one below */
    if (found) *link = found->next, kept_bytes -= found->bytes;
    pthread_mutex_unlock(&lock);
    if (found && found->bytes >= bytes) return (char *)found + 64;
    free(found);
    block_t *fresh = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    if (!fresh) return NULL;
    fresh->bytes = bytes;
    return (char *)fresh + 64;
}

void give_block(char *memory) {
    if (!memory) return;
    block_t *block = (block_t *)(memory - 64);
    pthread_mutex_lock(&lock);
    int keep = kept_bytes + block->bytes <= MOST_KEPT;
    if (keep) block->next = kept, kept = block, kept_bytes += block->bytes;
    pthread_mutex_unlock(&lock);
    if (!keep) free(block);
}

/* Give every waiting block back to the system. */
EXPORT void cosformer_release(void) {
    pthread_mutex_lock(&lock);
    block_t *block = kept;
    kept = NULL, kept_bytes = 0;
    pthread_mutex_unlock(&lock);
    while (block) {
        block_t *next = block->next;
        free(block);
        block = next;
    }
}

/* After fork the child must not find the lock held by a thread that no longer exists, nor wait for OpenMP's threads, which the
 * runtime believes it still has. */
static int forked; /* this process is the child of one that had loaded the library */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) { forked = 1, pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(before_fork, in_parent, in_child); }

typedef struct {
    work_t work;
    const void *context;
    int64_t tasks, threads;
    char **scratch;
    atomic_long next, member;
} crew_t;

static void crew_member(void *argument) {
    crew_t *crew = argument;
    long me = atomic_fetch_add(&crew->member, 1);
    if (me >= crew->threads) return;
    for (long task; (task = atomic_fetch_add(&crew->next, 1)) < crew->tasks;)
        crew->work(crew->context, task, crew->scratch[me]);
}

static void *crew_thread(void *argument) {
    crew_member(argument);
    return NULL;
}

typedef void (*gomp_parallel_t)(void (*)(void *), void *, unsigned, unsigned);

static gomp_parallel_t gomp_parallel(void) {
    if (forked) return NULL;
    union {
        void *object;
        gomp_parallel_t function;
    } symbol = {dlsym(RTLD_DEFAULT, "GOMP_parallel")};
    return symbol.function;
}

const char *pool_name(void) { return gomp_parallel() ? "torch's OpenMP" : "own threads"; }

int run_tasks(work_t work, const void *context, int64_t tasks, size_t scratch, int64_t threads) {
    if (threads > tasks) threads = tasks;
    if (threads > 1024) threads = 1024;
    if (threads < 1) threads = 1;
    char *blocks[1024];
    int64_t got = 0;
    while (got < threads && (blocks[got] = take_block(scratch))) got++;
    if (got) {
        crew_t crew = {.work = work, .context = context, .tasks = tasks, .threads = got, .scratch = blocks};
        gomp_parallel_t parallel = got > 1 ? gomp_parallel() : NULL;
        if (got == 1) {
            crew_member(&crew);
        } else if (parallel) {
            parallel(crew_member, &crew, (unsigned)got, 0);
        } else {
            pthread_t others[1024];
            int64_t started = 0;
            while (started < got - 1 && !pthread_create(&others[started], NULL, crew_thread, &crew)) started++;
            crew_member(&crew);
            while (started) pthread_join(others[--started], NULL);
        }
    }
    for (int64_t i = 0; i < got; i++) give_block(blocks[i]);
    return got == 0;
}
