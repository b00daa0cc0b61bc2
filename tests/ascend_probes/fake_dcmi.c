/* A library that answers as libdcmi.so does, for two invented cards: the second does not tell its power. */
#include <stdio.h>
#include <string.h>

struct chip_info { unsigned char type[32], name[32], version[32]; unsigned int cores; };
struct hbm { unsigned long long size; unsigned int freq; unsigned long long used; int temp; unsigned int rate; };
struct memory {
    unsigned long long size, available;
    unsigned int freq;
    unsigned long page, pages, pages_free;
    unsigned int used_percent;
    unsigned char reserve[60];
};
struct ecc { int enabled; unsigned int single, twofold, all_single, all_twofold, single_pages, twofold_pages; };
struct process { int pid; unsigned long bytes; };
struct pcie { unsigned int ids[4]; int domain; unsigned int bus, device, function; unsigned char reserve[32]; };

#ifndef INIT_CODE
#define INIT_CODE 0
#endif

int dcmi_init(void) {
    /* As the real one does in a container without the driver's log device. */
    printf("the console's log level is not known\n");
    fflush(stdout);
    return INIT_CODE;
}

int dcmi_get_card_list(int *count, int *cards, int length) {
    if (length < 2) return -8001;
    *count = 2;
    cards[0] = 0;
    cards[1] = 4;
    return 0;
}

int dcmi_get_device_id_in_card(int card, int *most, int *controller, int *cpu) {
    *most = 1;
    *controller = card;
    *cpu = -1;
    return 0;
}

int dcmi_get_device_chip_info(int card, int chip, struct chip_info *info) {
    (void)card; (void)chip;
    memset(info, 0, sizeof *info);
    strcpy((char *)info->name, "910B3");
    info->cores = 20;
    return 0;
}

int dcmi_get_device_hbm_info(int card, int chip, struct hbm *info) {
    (void)chip;
    info->size = 65536;
    info->freq = 1600;
    info->used = 3000 + card;
    info->temp = 37;
    info->rate = 0;
    return 0;
}

int dcmi_get_device_memory_info_v3(int card, int chip, struct memory *info) {
    (void)card; (void)chip;
    memset(info, 0, sizeof *info);
    info->pages = 10;
    info->pages_free = 8;
    return 0;
}

int dcmi_get_device_ecc_info(int card, int chip, int kind, struct ecc *info) {
    (void)chip;
    if (kind != 2) return -8255;
    memset(info, 0, sizeof *info);
    info->single = 5;
    info->twofold = card == 4;
    return 0;
}

int dcmi_get_device_power_info(int card, int chip, int *tenths) {
    (void)chip;
    *tenths = 987;
    return card == 4 ? -8255 : 0;
}

int dcmi_get_device_health(int card, int chip, unsigned int *health) {
    (void)chip;
    *health = card == 4 ? 2 : 0;
    return 0;
}

int dcmi_get_device_temperature(int card, int chip, int *degrees) {
    (void)card; (void)chip;
    *degrees = 42;
    return 0;
}

int dcmi_get_device_utilization_rate(int card, int chip, int kind, unsigned int *rate) {
    (void)card; (void)chip;
    *rate = kind == 2 ? 55 : 1;
    return 0;
}

int dcmi_get_device_pcie_info_v2(int card, int chip, struct pcie *at) {
    (void)chip;
    memset(at, 0, sizeof *at);
    at->bus = 0xC1 + card;
    return 0;
}

int dcmi_get_device_resource_info(int card, int chip, struct process *held, int *count) {
    (void)chip;
    *count = card == 0;
    held[0].pid = 4321;
    held[0].bytes = 7ul << 20;
    return 0;
}

int dcmi_get_driver_version(char *text, unsigned int length) {
    strncpy(text, "25.5.1", length);
    return 0;
}
