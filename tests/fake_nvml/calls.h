/* How a call begins and ends: session, fault hooks, permission, records. */
#ifndef FAKE_NVML_CALLS_H
#define FAKE_NVML_CALLS_H

#include "nvml.h"
#include "state.h"

struct call {
    struct state *state; /* NULL where the state could not be taken */
    struct gpu_state *gpu;
    const struct motion *motion;
    const char *function;
    int index;
    uint64_t now_ns;
    uint64_t begun_ns; /* before it stood still */
    struct hook rule; /* of a setter that lies or is late; its id is 0 where there is none */
    int recorded;     /* before its end, which it may not live to see */
};

/* Each begin takes the state and asks the hooks; each must be followed by an end. */
nvmlReturn_t call_begin(struct call *call, const char *function, int gpu);
nvmlReturn_t device_begin(struct call *call, const char *function, nvmlDevice_t device);
nvmlReturn_t write_begin(struct call *call, const char *function, nvmlDevice_t device);
nvmlReturn_t call_end(struct call *call, nvmlReturn_t code);

/* Whether a setter must leave the GPU alone: its rule lies, or has it done later. */
int diverted(struct call *call, uint32_t kind, uint32_t first, uint32_t second);
nvmlReturn_t write_end(struct call *call, uint32_t first, uint32_t second, nvmlReturn_t code);

/* What the hooks say to a part of a call that has begun, such as "field:186". */
nvmlReturn_t part_code(struct call *call, const char *part);

nvmlReturn_t session_enter(const char *function);
nvmlReturn_t session_leave(const char *function);

int device_index(nvmlDevice_t device); /* -1: it is no handle of ours */
nvmlDevice_t handle_of(struct call *call, uint32_t index);
nvmlReturn_t put_text(struct call *call, char *buffer, uint32_t length, const char *text);
void sleep_ms(int64_t delay_ms);
int is_alive(uint32_t pid);

/* What a symbol without an answer of its own answers; `first` may be anything. */
nvmlReturn_t stub_answer(const char *function, const void *first);

/* One value of one device: everything that needs no more than an expression. */
#define GETTER(symbol, type, expression)                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, type *value)                                      \
    {                                                                                          \
        struct call call;                                                                      \
        nvmlReturn_t code = device_begin(&call, __func__, device);                             \
        if (code == NVML_SUCCESS && value == NULL)                                             \
            code = NVML_ERROR_INVALID_ARGUMENT;                                                \
        if (code == NVML_SUCCESS)                                                              \
            *value = (type)(expression);                                                       \
        return call_end(&call, code);                                                          \
    }

#define TEXT_GETTER(symbol, expression)                                                        \
    nvmlReturn_t symbol(nvmlDevice_t device, char *text, uint32_t length)                      \
    {                                                                                          \
        struct call call;                                                                      \
        nvmlReturn_t code = device_begin(&call, __func__, device);                             \
        return code ? call_end(&call, code) : put_text(&call, text, length, (expression));     \
    }

/* Volta and older: no memory locks, no MIG. */
static inline int older_than_ampere(const struct gpu_state *gpu)
{
    return gpu->architecture < NVML_DEVICE_ARCH_AMPERE;
}

#endif
